//! The messages of a login: bodies of `p` (from clients) and `R` (from servers), read and written.
//!
//! # Model
//! `p` is PasswordMessage, SASLInitialResponse or SASLResponse, and only the state of the login says which. `R` begins with a code.
//!
//! # Limits
//! PostgreSQL's: a SASL message has at most [`SASL_MESSAGE_LENGTH_MAX`] bytes and a password message
//! [`PASSWORD_MESSAGE_LENGTH_MAX`], the length word included. Check them on the header, before a body is awaited.

use super::md5::Salt;

/// PostgreSQL's `PG_MAX_SASL_MESSAGE_LENGTH`, in bytes with the length word.
pub const SASL_MESSAGE_LENGTH_MAX: usize = 1024;
/// PostgreSQL's `PG_MAX_AUTH_TOKEN_LENGTH`, in bytes with the length word.
pub const PASSWORD_MESSAGE_LENGTH_MAX: usize = 65_535;

const LENGTH_WORD: usize = 4;

/// What is wrong with a client's message. All are 08P01 but an empty password, which is 28P01. The
/// messages are PostgreSQL's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Longer than its kind may be.
    #[error("invalid message length")]
    TooLong,
    /// A string without its NUL.
    #[error("invalid string in message")]
    InvalidString,
    /// Fewer bytes than a length says, or a negative length.
    #[error("insufficient data left in message")]
    InsufficientData,
    /// Bytes after the end.
    #[error("invalid message format")]
    TrailingData,
    /// A password with a NUL in it, or without one after it.
    #[error("invalid password packet size")]
    InvalidPasswordSize,
    /// No password.
    #[error("empty password returned by client")]
    EmptyPassword,
}

impl MessageError {
    /// The SQLSTATE that PostgreSQL gives.
    pub fn sqlstate(self) -> &'static str {
        match self {
            Self::TooLong
            | Self::InvalidString
            | Self::InsufficientData
            | Self::TrailingData
            | Self::InvalidPasswordSize => "08P01",
            Self::EmptyPassword => "28P01",
        }
    }
}

fn check_length(body: &[u8], length_max: usize) -> Result<(), MessageError> {
    if body.len() + LENGTH_WORD > length_max { Err(MessageError::TooLong) } else { Ok(()) }
}

/// Reads a PasswordMessage: the password, or the answer to a salt, without its NUL.
pub fn password(body: &[u8]) -> Result<&[u8], MessageError> {
    check_length(body, PASSWORD_MESSAGE_LENGTH_MAX)?;
    match body {
        [password @ .., 0] if password.contains(&0) => Err(MessageError::InvalidPasswordSize),
        [0] => Err(MessageError::EmptyPassword),
        [password @ .., 0] => Ok(password),
        _ => Err(MessageError::InvalidPasswordSize),
    }
}

/// A client's choice of a mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaslInitialResponse<'a> {
    /// The name of the mechanism, which may be anything.
    pub mechanism: &'a [u8],
    /// The first message of the exchange, or `None`: the client waits for an empty challenge.
    pub data: Option<&'a [u8]>,
}

impl<'a> SaslInitialResponse<'a> {
    /// Reads the message.
    pub fn parse(body: &'a [u8]) -> Result<Self, MessageError> {
        Self::parse_up_to(body, SASL_MESSAGE_LENGTH_MAX)
    }

    /// The same of a mechanism whose messages may be longer: OAUTHBEARER's have a token in them.
    pub fn parse_up_to(body: &'a [u8], length_max: usize) -> Result<Self, MessageError> {
        check_length(body, length_max)?;
        let (mechanism, rest) = string(body)?;
        let (length, rest) = rest.split_first_chunk().ok_or(MessageError::InsufficientData)?;
        let (data, rest) = match i32::from_be_bytes(*length) {
            -1 => (None, rest),
            length => {
                let length = usize::try_from(length).map_err(|_| MessageError::InsufficientData)?;
                let (data, rest) =
                    rest.split_at_checked(length).ok_or(MessageError::InsufficientData)?;
                (Some(data), rest)
            }
        };
        if rest.is_empty() { Ok(Self { mechanism, data }) } else { Err(MessageError::TrailingData) }
    }

    /// The mechanism as text; anything that is not text names no mechanism.
    pub fn mechanism_name(&self) -> &'a str {
        std::str::from_utf8(self.mechanism).unwrap_or_default()
    }
}

/// Reads a SASLResponse: all of it is data. What an empty one means is for the mechanism to say.
pub fn sasl_response(body: &[u8]) -> Result<&[u8], MessageError> {
    check_length(body, SASL_MESSAGE_LENGTH_MAX)?;
    Ok(body)
}

fn string(body: &[u8]) -> Result<(&[u8], &[u8]), MessageError> {
    let end = body.iter().position(|&byte| byte == 0).ok_or(MessageError::InvalidString)?;
    Ok((&body[..end], &body[end + 1..]))
}

const OK: i32 = 0;
const CLEARTEXT_PASSWORD: i32 = 3;
const MD5_PASSWORD: i32 = 5;
const SASL: i32 = 10;
const SASL_CONTINUE: i32 = 11;
const SASL_FINAL: i32 = 12;

/// What a server asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthenticationRequest<'a> {
    /// The login is done.
    Ok,
    /// The password in clear text.
    CleartextPassword,
    /// The md5 answer to this salt.
    Md5Password(Salt),
    /// One of these mechanisms.
    Sasl(Vec<&'a str>),
    /// The next message of a SASL exchange.
    SaslContinue(&'a [u8]),
    /// The last message of a SASL exchange; the login goes on.
    SaslFinal(&'a [u8]),
    /// Kerberos, GSSAPI, SSPI or something newer: its code.
    Unsupported(i32),
}

/// A server's message that breaks the protocol; close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed authentication request from server")]
pub struct MalformedRequest;

impl<'a> AuthenticationRequest<'a> {
    /// Reads the body of an `R` message. Names of mechanisms that are not text are passed over.
    pub fn parse(body: &'a [u8]) -> Result<Self, MalformedRequest> {
        let (code, rest) = body.split_first_chunk().ok_or(MalformedRequest)?;
        let request = match i32::from_be_bytes(*code) {
            OK => Self::Ok,
            CLEARTEXT_PASSWORD => Self::CleartextPassword,
            MD5_PASSWORD => {
                return rest.try_into().map(Self::Md5Password).map_err(|_| MalformedRequest);
            }
            SASL => return mechanisms(rest).map(Self::Sasl),
            SASL_CONTINUE => return Ok(Self::SaslContinue(rest)),
            SASL_FINAL => return Ok(Self::SaslFinal(rest)),
            other => return Ok(Self::Unsupported(other)),
        };
        if rest.is_empty() { Ok(request) } else { Err(MalformedRequest) }
    }
}

/// Strings, and an empty one after them.
fn mechanisms(mut rest: &[u8]) -> Result<Vec<&str>, MalformedRequest> {
    let mut names = Vec::new();
    loop {
        let (name, after) = string(rest).map_err(|_| MalformedRequest)?;
        match (name.is_empty(), after.is_empty()) {
            (true, true) => return Ok(names),
            (true, false) => return Err(MalformedRequest),
            (false, _) => names.extend(std::str::from_utf8(name)),
        }
        rest = after;
    }
}

fn message(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = LENGTH_WORD + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut message = Vec::with_capacity(1 + length);
    message.push(kind);
    // Everything that is written here has been bounded by the limits above.
    message.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    message.extend(parts.iter().copied().flatten());
    message
}

/// AuthenticationOk, whole.
pub fn ok() -> Vec<u8> {
    message(b'R', &[&OK.to_be_bytes()])
}

/// AuthenticationCleartextPassword, whole.
pub fn cleartext_password() -> Vec<u8> {
    message(b'R', &[&CLEARTEXT_PASSWORD.to_be_bytes()])
}

/// AuthenticationMD5Password, whole.
pub fn md5_password(salt: Salt) -> Vec<u8> {
    message(b'R', &[&MD5_PASSWORD.to_be_bytes(), &salt])
}

/// AuthenticationSASL, whole, with the best mechanism first.
pub fn sasl(mechanisms: &[&str]) -> Vec<u8> {
    let names: Vec<u8> =
        mechanisms.iter().flat_map(|name| name.bytes().chain([0])).chain([0]).collect();
    message(b'R', &[&SASL.to_be_bytes(), &names])
}

/// AuthenticationSASLContinue, whole.
pub fn sasl_continue(data: &[u8]) -> Vec<u8> {
    message(b'R', &[&SASL_CONTINUE.to_be_bytes(), data])
}

/// AuthenticationSASLFinal, whole.
pub fn sasl_final(data: &[u8]) -> Vec<u8> {
    message(b'R', &[&SASL_FINAL.to_be_bytes(), data])
}

/// PasswordMessage, whole: a password or the answer to a salt, to a server.
pub fn password_message(password: &[u8]) -> Vec<u8> {
    message(b'p', &[password, &[0]])
}

/// SASLInitialResponse, whole, to a server.
pub fn sasl_initial_response(mechanism: &str, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes();
    message(b'p', &[mechanism.as_bytes(), &[0], &length, data])
}

/// SASLResponse, whole, to a server.
pub fn sasl_response_message(data: &[u8]) -> Vec<u8> {
    message(b'p', &[data])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(message: &[u8]) -> &[u8] {
        let length = u32::from_be_bytes(message[1..5].try_into().unwrap());
        assert_eq!(length as usize, message.len() - 1);
        &message[5..]
    }

    #[test]
    fn a_password_is_all_up_to_the_only_nul() {
        assert_eq!(password(b"secret\0"), Ok(b"secret".as_slice()));
        assert_eq!(password(b"\0"), Err(MessageError::EmptyPassword));
        for broken in [b"".as_slice(), b"secret", b"se\0cret\0", b"\0\0"] {
            assert_eq!(password(broken), Err(MessageError::InvalidPasswordSize), "{broken:?}");
        }
        assert_eq!(MessageError::EmptyPassword.sqlstate(), "28P01");
    }

    #[test]
    fn a_sasl_message_with_an_empty_or_negative_length_is_an_error_or_no_data() {
        let with = |length: i32, data: &[u8]| {
            [b"SCRAM-SHA-256\0", &length.to_be_bytes()[..], data].concat()
        };
        let parse = |body: &[u8]| {
            SaslInitialResponse::parse(body).map(|parsed| parsed.data.map(<[u8]>::to_vec))
        };
        assert_eq!(parse(&with(-1, b"")), Ok(None));
        assert_eq!(parse(&with(0, b"")), Ok(Some(Vec::new())));
        assert_eq!(parse(&with(3, b"abc")), Ok(Some(b"abc".to_vec())));
        for length in [-2, i32::MIN, 4, i32::MAX] {
            assert_eq!(
                parse(&with(length, b"abc")),
                Err(MessageError::InsufficientData),
                "{length}"
            );
        }
        for length in [-1, 0, 2] {
            assert_eq!(parse(&with(length, b"abc")), Err(MessageError::TrailingData), "{length}");
        }
        assert_eq!(parse(b""), Err(MessageError::InvalidString));
    }

    #[test]
    fn every_truncation_of_an_initial_response_is_an_error() {
        let whole = sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=abc");
        let whole = body(&whole);
        let parsed = SaslInitialResponse::parse(whole).unwrap();
        assert_eq!(parsed.mechanism_name(), "SCRAM-SHA-256");
        assert_eq!(parsed.data, Some(b"n,,n=,r=abc".as_slice()));
        for length in 0..whole.len() {
            assert!(SaslInitialResponse::parse(&whole[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn the_limits_are_those_of_postgresql() {
        assert!(sasl_response(&[b'x'; SASL_MESSAGE_LENGTH_MAX - 4]).is_ok());
        assert_eq!(sasl_response(&[b'x'; SASL_MESSAGE_LENGTH_MAX - 3]), Err(MessageError::TooLong));
        let mut long = vec![b'x'; PASSWORD_MESSAGE_LENGTH_MAX - 5];
        long.push(0);
        assert!(password(&long).is_ok());
        long.insert(0, b'x');
        assert_eq!(password(&long), Err(MessageError::TooLong));
    }

    #[test]
    fn requests_are_read_back_as_written() {
        use AuthenticationRequest as Request;
        let table = [
            (ok(), Request::Ok),
            (cleartext_password(), Request::CleartextPassword),
            (md5_password([1, 2, 3, 4]), Request::Md5Password([1, 2, 3, 4])),
            (sasl(&["SCRAM-SHA-256-PLUS", "X"]), Request::Sasl(vec!["SCRAM-SHA-256-PLUS", "X"])),
            (sasl_continue(b"r="), Request::SaslContinue(b"r=")),
            (sasl_final(b"v="), Request::SaslFinal(b"v=")),
        ];
        for (written, read) in &table {
            assert_eq!(written[0], b'R');
            assert_eq!(Request::parse(body(written)), Ok(read.clone()));
        }
        for length in 0..body(&table[3].0).len() {
            assert_eq!(Request::parse(&body(&table[3].0)[..length]), Err(MalformedRequest));
        }
        for length in 0..body(&table[2].0).len() {
            assert_eq!(Request::parse(&body(&table[2].0)[..length]), Err(MalformedRequest));
        }
        assert_eq!(Request::parse(&[0, 0, 0, 0, 9]), Err(MalformedRequest));
        assert_eq!(Request::parse(&[0, 0, 0, 7]), Ok(Request::Unsupported(7)));
        assert_eq!(Request::parse(b"\0\0\0\x0aA\0\0B\0\0"), Err(MalformedRequest));
        assert_eq!(password_message(b"x"), b"p\0\0\0\x06x\0");
        assert_eq!(sasl_response_message(b"x"), b"p\0\0\0\x05x");
    }

    proptest! {
        #[test]
        fn reading_never_panics(body in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = password(&body);
            let _ = sasl_response(&body);
            let _ = SaslInitialResponse::parse(&body);
            let _ = AuthenticationRequest::parse(&body);
        }
    }
}
