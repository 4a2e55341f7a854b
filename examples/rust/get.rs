//! Gets a page that another process put, such as the example in C, and prints its text.
//!
//!     rustc -L /opt/hicache/lib get.rs && ./get /tmp/node greeting
//!
//! Declares only what it uses of hicache.h; bindgen generates all declarations.

use std::ffi::{c_char, c_void, CStr, CString};
use std::process::ExitCode;
use std::ptr::{null, null_mut};

#[repr(C)]
pub struct Client {
    _private: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Key {
    bytes: [u8; 32],
}

#[repr(C)]
pub struct Error {
    code: i32,
    text: [c_char; 252],
}

#[repr(C)]
pub struct Part {
    data: *mut c_void,
    bytes: usize,
}

#[repr(C)]
pub struct Page {
    key: Key,
    parent: Key,
    parts: *const Part,
    part_count: usize,
    reserved: [u64; 2],
}

#[repr(C)]
pub struct Call {
    size: usize,
    flags: u32,
    timeout_ms: u32,
    user: *mut c_void,
    codes: *mut i32,
    lease: *mut c_void,
}

#[repr(C)]
pub struct Completion {
    ticket: u64,
    user: *mut c_void,
    lease: *mut c_void,
    pages: u32,
    prefix: u32,
    error: Error,
    reserved: [u64; 4],
}

#[link(name = "hicache")]
extern "C" {
    fn hc_open(
        config: *const c_char,
        options: *const c_void,
        client: *mut *mut Client,
        error: *mut Error,
    ) -> i32;
    fn hc_close(client: *mut Client) -> i32;
    fn hc_names(
        client: *const Client,
        names: *const c_void,
        lengths: *const usize,
        count: usize,
        keys: *mut Key,
    ) -> i32;
    fn hc_get(
        client: *mut Client,
        pages: *const Page,
        count: usize,
        call: *const Call,
        ticket: *mut u64,
        error: *mut Error,
    ) -> i32;
    fn hc_wait(
        client: *mut Client,
        ticket: u64,
        timeout_ms: u32,
        completion: *mut Completion,
    ) -> i32;
}

const TIMEOUT_MS: u32 = 5000;

fn sentence(error: &Error) -> String {
    let text = unsafe { CStr::from_ptr(error.text.as_ptr()) };
    format!("{} ({})", text.to_string_lossy(), error.code)
}

/// A client of a node. One thread at a time.
struct Store(*mut Client);

impl Store {
    fn open(socket: &str) -> Result<Store, String> {
        let config = format!("{{\"socket\": \"{socket}\", \"namespace\": \"example\"}}");
        let config = CString::new(config).map_err(|_| "the path has a zero in it".to_string())?;
        let mut client = null_mut();
        let mut error = Error {
            code: 0,
            text: [0; 252],
        };
        match unsafe { hc_open(config.as_ptr(), null(), &mut client, &mut error) } {
            0 => Ok(Store(client)),
            _ => Err(sentence(&error)),
        }
    }

    /// Reads the page of that name into `bytes`, which must have its length. False if it is absent.
    fn get(&self, name: &str, bytes: &mut [u8]) -> Result<bool, String> {
        let mut key = Key { bytes: [0; 32] };
        let part = Part {
            data: bytes.as_mut_ptr().cast(),
            bytes: bytes.len(),
        };
        let size = std::mem::size_of::<Call>();
        let call = Call {
            size,
            flags: 0,
            timeout_ms: TIMEOUT_MS,
            user: null_mut(),
            codes: null_mut(),
            lease: null_mut(),
        };
        let mut ticket = 0;
        let mut error = Error {
            code: 0,
            text: [0; 252],
        };
        let mut done = std::mem::MaybeUninit::<Completion>::zeroed();
        unsafe {
            hc_names(self.0, name.as_ptr().cast(), &name.len(), 1, &mut key);
            let page = Page {
                key,
                parent: Key { bytes: [0; 32] },
                parts: &part,
                part_count: 1,
                reserved: [0; 2],
            };
            if hc_get(self.0, &page, 1, &call, &mut ticket, &mut error) != 0 {
                return Err(sentence(&error));
            }
            // A call ends at its deadline or soon after; until then it uses `bytes`.
            while hc_wait(self.0, ticket, TIMEOUT_MS, done.as_mut_ptr()) != 0 {}
            let done = done.assume_init();
            if done.error.code != 0 {
                return Err(sentence(&done.error));
            }
            Ok(done.pages == 1)
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        unsafe { hc_close(self.0) };
    }
}

fn run(socket: &str, name: &str) -> Result<(), String> {
    let mut bytes = vec![0u8; 4096];
    if !Store::open(socket)?.get(name, &mut bytes)? {
        return Err(format!("{name} is not there"));
    }
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    println!("{}", String::from_utf8_lossy(&bytes[..end]));
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 3 {
        eprintln!("usage: {} SOCKET NAME", arguments[0]);
        return ExitCode::from(1);
    }
    match run(&arguments[1], &arguments[2]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(1)
        }
    }
}
