//! Whether a password is a user's, as the system's PAM says.
//!
//! # Model  libpam is loaded when it is asked: a program without libraries is built and runs, and says that
//!          it cannot do this. One question a process: modules keep what they like in memory, and may block
//! # Source Linux-PAM 1.5, security/_pam_types.h and pam_appl.h; PostgreSQL's src/backend/libpq/auth.c

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

const LIBRARY: &CStr = c"libpam.so.0";

const PAM_SUCCESS: c_int = 0;
const PAM_BUF_ERR: c_int = 5;
const PAM_CONV_ERR: c_int = 19;
/// The item of the client's host.
const PAM_RHOST: c_int = 4;
const PAM_PROMPT_ECHO_OFF: c_int = 1;
const PAM_ERROR_MSG: c_int = 3;
const PAM_TEXT_INFO: c_int = 4;
/// `PAM_MAX_NUM_MSG`
const MESSAGES_MAX: c_int = 32;

#[repr(C)]
struct Message {
    style: c_int,
    text: *const c_char,
}

#[repr(C)]
struct Response {
    text: *mut c_char,
    code: c_int,
}

type Converse =
    extern "C" fn(c_int, *const *const Message, *mut *mut Response, *mut c_void) -> c_int;

#[repr(C)]
struct Conversation {
    converse: Converse,
    data: *mut c_void,
}

// SAFETY: of the functions that these are, `check` and `Library::load` say why calls are sound.
type Start = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const Conversation,
    *mut *mut c_void,
) -> c_int;
// SAFETY: as above.
type SetItem = unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int;
// SAFETY: as above.
type Act = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
// SAFETY: as above.
type Words = unsafe extern "C" fn(*mut c_void, c_int) -> *const c_char;

/// The functions of libpam that are used.
struct Library {
    start: Start,
    set_item: SetItem,
    authenticate: Act,
    account: Act,
    words: Words,
    end: Act,
}

/// Why PAM does not say that the password is right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PamError {
    /// There is no libpam, or it is not as it should be.
    #[error("PAM cannot be used: {0}")]
    NoLibrary(String),
    /// A step was refused.
    #[error("{step} failed: {words} ({code})")]
    Refused {
        /// Which.
        step: &'static str,
        /// PAM's number.
        code: i32,
        /// PAM's words.
        words: String,
    },
}

fn last_error() -> PamError {
    // SAFETY: dlerror gives a string of its own that lives until the next call of this thread, or null.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    PamError::NoLibrary(text.unwrap_or_else(|| "dlopen gives no reason".to_owned()))
}

impl Library {
    fn load() -> Result<Self, PamError> {
        // SAFETY: the name is a C string. The library is never closed, so that its functions stay.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(last_error());
        }
        let function = |name: &CStr| {
            // SAFETY: the handle is open, the name a C string.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if found.is_null() { Err(last_error()) } else { Ok(found) }
        };
        // SAFETY: the symbols are libpam's, whose headers give these types.
        unsafe {
            Ok(Self {
                start: std::mem::transmute::<*mut c_void, Start>(function(c"pam_start")?),
                set_item: std::mem::transmute::<*mut c_void, SetItem>(function(c"pam_set_item")?),
                authenticate: std::mem::transmute::<*mut c_void, Act>(function(
                    c"pam_authenticate",
                )?),
                account: std::mem::transmute::<*mut c_void, Act>(function(c"pam_acct_mgmt")?),
                words: std::mem::transmute::<*mut c_void, Words>(function(c"pam_strerror")?),
                end: std::mem::transmute::<*mut c_void, Act>(function(c"pam_end")?),
            })
        }
    }
}

/// Answers each prompt that hides its answer with the password, which `data` points to.
extern "C" fn converse(
    count: c_int,
    messages: *const *const Message,
    responses: *mut *mut Response,
    data: *mut c_void,
) -> c_int {
    if !(1..=MESSAGES_MAX).contains(&count) || messages.is_null() || responses.is_null() {
        return PAM_CONV_ERR;
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: calloc of a bounded size; libpam frees it.
    let answers = unsafe { libc::calloc(count, size_of::<Response>()) }.cast::<Response>();
    if answers.is_null() {
        return PAM_BUF_ERR;
    }
    for at in 0..count {
        // SAFETY: libpam gives `count` pointers to messages that live through this call.
        let style = unsafe { (**messages.add(at)).style };
        let text = match style {
            PAM_PROMPT_ECHO_OFF => data.cast::<c_char>().cast_const(),
            PAM_ERROR_MSG | PAM_TEXT_INFO => c"".as_ptr(),
            _ => null(),
        };
        if text.is_null() {
            // SAFETY: it was made here, and has no other owner.
            unsafe { discard(answers, at) };
            return PAM_CONV_ERR;
        }
        // SAFETY: `text` is a C string: the password of `check`, which outlives the conversation, or empty.
        // `answers` has `count` places.
        unsafe { (*answers.add(at)).text = libc::strdup(text) };
    }
    // SAFETY: libpam gives a place for one pointer.
    unsafe { *responses = answers };
    PAM_SUCCESS
}

/// Frees the first `made` answers and the list.
///
/// # Safety
/// `answers` is a list of at least `made` answers that was allocated by calloc, each text null or by strdup.
unsafe fn discard(answers: *mut Response, made: usize) {
    for at in 0..made {
        // SAFETY: the caller's promise.
        unsafe { libc::free((*answers.add(at)).text.cast()) };
    }
    // SAFETY: the caller's promise.
    unsafe { libc::free(answers.cast()) };
}

/// Asks PAM whether `password` is `user`'s, and whether its account may be used. `host` is where the client
/// is. Blocks for as long as a module likes, and may leave things in memory: for a process of its own.
///
/// # Errors
/// Why not.
pub fn check(
    service: &CStr,
    user: &CStr,
    password: &CStr,
    host: Option<&CStr>,
) -> Result<(), PamError> {
    let library = Library::load()?;
    let conversation =
        Conversation { converse, data: password.as_ptr().cast_mut().cast::<c_void>() };
    let mut handle = null_mut();
    // SAFETY: C strings, a conversation that outlives the handle, and a place for it.
    let started = unsafe {
        (library.start)(service.as_ptr(), user.as_ptr(), &raw const conversation, &raw mut handle)
    };
    let words = |code| {
        // SAFETY: pam_strerror takes any handle and any code, and gives a constant string.
        let text = unsafe { (library.words)(handle, code) };
        // SAFETY: as above, unless it is null.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
        text.map_or_else(String::new, |text| text.to_string_lossy().into_owned())
    };
    let result = |step, code| match code {
        PAM_SUCCESS => Ok(()),
        code => Err(PamError::Refused { step, code, words: words(code) }),
    };
    result("pam_start", started)?;
    let steps = || {
        if let Some(host) = host {
            // SAFETY: the handle is open; the item is a C string, which is copied.
            let code = unsafe { (library.set_item)(handle, PAM_RHOST, host.as_ptr().cast()) };
            result("pam_set_item(PAM_RHOST)", code)?;
        }
        // SAFETY: the handle is open.
        result("pam_authenticate", unsafe { (library.authenticate)(handle, 0) })?;
        // SAFETY: the handle is open.
        result("pam_acct_mgmt", unsafe { (library.account)(handle, 0) })
    };
    let checked = steps();
    let code = match &checked {
        Err(PamError::Refused { code, .. }) => *code,
        _ => PAM_SUCCESS,
    };
    // SAFETY: the handle is open, and not used afterwards.
    unsafe { (library.end)(handle, code) };
    checked
}
