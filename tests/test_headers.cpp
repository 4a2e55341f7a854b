// Holds nothing: CMake precompiles a header for targets that have a source.
