#!/usr/bin/env bash
# public_headers_test.sh SOURCE_FOLDER COMPILER: each header in include/hicache/ compiles alone, without a warning, and needs the standard
# library, tl::expected and, for messages and actors, CAF's core headers; nothing else of hicache or of other libraries.
set -euo pipefail
# The headers that speak of actors. The others are for layers that know nothing of CAF.
with_caf=(caf_error hicache interfaces runtime system_config)
work=$(mktemp -d -t hicache-headers-XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/include"
cp -r "$1/include/hicache" "$work/include/"
failures=0
for path in "$1"/include/hicache/*.hpp; do
  name=$(basename "$path" .hpp)
  echo "#include <hicache/$name.hpp>" >"$work/alone.cpp"
  flags=(-std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -I"$work/include" "$work/alone.cpp")
  if ! "$2" "${flags[@]}" -fsyntax-only; then
    echo "$name.hpp does not compile alone"
    failures=1
    continue
  fi
  allowed='c\+\+|tl|bits|sys|gnu|asm|asm-generic|linux'
  if [[ " ${with_caf[*]} " == *" $name "* ]]; then
    allowed+='|caf'
  fi
  others=$("$2" "${flags[@]}" -M | tr -s ' \\' '\n' | sed -nE 's,^/usr/(local/)?include/([a-z0-9_]+-linux-gnu/)?([^/]+)/.*,\3,p' | sort -u | grep -vxE "$allowed" || true)
  if [ -n "$others" ]; then
    echo "$name.hpp includes headers of" $others
    failures=1
  fi
done
exit "$failures"
