//! Prepares server connections to be handed over: finds what that needs, once for each.
//!
//! # Model
//! The server's challenge of the login and the secret give the session's key; the server says which
//! number the function has in this database, and which role it lets hand sessions over. A first
//! message, that names no user, shows whether both have the same secret: so what is missing is
//! known and logged before a client has the connection. The rest is
//! [`hawser_pooler::parts::identity::hand_over`]'s.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hawser_pooler::parts::identity::hand_over::HandOverKey;
use hawser_pooler::wire::error::{ClientError, SqlState};
use hawser_pooler::wire::{TransactionStatus, backend};
use ring::hmac;

use super::enter::Entered;
use super::talk::{LOGIN_MESSAGES_MAX, Talk, TalkError, server_error};
use crate::process::pooler_number;

/// As in the server (secret.c).
const SECRET_BYTES_MIN: usize = 32;
/// See [`SECRET_BYTES_MIN`].
const SECRET_BYTES_MAX: usize = 1024;
const CHALLENGE_BYTES: usize = 16;

/// Number, pooler's role, and flags of the messages (NULL from an earlier extension), in one row.
const ASKED: &str = "SELECT 'hawser.hand_over(pg_catalog.bytea)'::pg_catalog.regprocedure::pg_catalog.oid, \
     pg_catalog.current_setting('hawser.pooler_role', true), \
     pg_catalog.current_setting('hawser.hand_over_flags', true)";
/// The flag of a client's transport, among those that the extension takes.
const FLAG_TRANSPORT: u32 = 8;

/// The secret shared with the server. Never printed.
#[derive(PartialEq, Eq, derive_more::Debug)]
#[debug("Secret(..)")]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// Reads it from its file.
    ///
    /// # Errors
    /// The error in the file.
    pub fn load(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| {
            let about = file.metadata()?;
            file.take(SECRET_BYTES_MAX as u64 + 8).read_to_end(&mut bytes)?;
            Ok(about)
        });
        let about = read.map_err(|error| format!("{shown}: {error}"))?;
        if !about.is_file() || about.mode() & 0o027 != 0 {
            return Err(format!(
                "{shown}: others can read or write it; its permissions are to be 0600, or 0640"
            ));
        }
        while let Some(b'\n' | b'\r') = bytes.last() {
            bytes.pop();
        }
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            return Err(format!(
                "{shown} has {} bytes, and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} are right: it \
                 is to be the file of the server's hawser.secret_file",
                bytes.len()
            ));
        }
        Ok(Self(bytes.into()))
    }

    fn key(&self, challenge: &[u8; CHALLENGE_BYTES]) -> [u8; 16] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), challenge);
        let mut key = [0; 16];
        key.copy_from_slice(&tag.as_ref()[..16]);
        key
    }
}

/// Why a connection cannot be handed over.
#[derive(Debug, derive_more::From)]
pub enum NotHandedOver {
    /// What is missing, or wrong.
    Because(String),
    /// The conversation broke off.
    #[from]
    Talk(TalkError),
}

fn because<T>(reason: impl Into<String>) -> Result<T, NotHandedOver> {
    Err(NotHandedOver::Because(reason.into()))
}

fn parse_challenge(text: &[u8]) -> Option<[u8; CHALLENGE_BYTES]> {
    let hexadecimal = text.iter().all(u8::is_ascii_hexdigit);
    let fits = hexadecimal && text.len() == 2 * CHALLENGE_BYTES;
    let text = std::str::from_utf8(text).ok().filter(|_| fits)?;
    let mut challenge = [0; CHALLENGE_BYTES];
    for (at, byte) in challenge.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(challenge)
}

/// Finds what is needed to hand this connection over, and checks that the server allows it. `user`
/// has logged in, if the connection is to become other users'.
///
/// # Errors
/// What is missing; the connection is then of no use.
pub async fn begin(
    talk: &mut Talk,
    entered: &Entered,
    user: Option<&str>,
    secret: &Secret,
) -> Result<HandOverKey, NotHandedOver> {
    let challenge = match entered.challenge.as_deref() {
        None => {
            return because(
                "the server has not loaded the extension: shared_preload_libraries = 'hawser'",
            );
        }
        Some([]) => return because("the server has no hawser.secret_file"),
        Some(text) => match parse_challenge(text) {
            Some(challenge) => challenge,
            None => return because("the server's challenge is not understood"),
        },
    };
    let answer = match talk.query(ASKED).await {
        Err(TalkError::Server(error)) if is_about_names(&error.code) => {
            return because("the extension is not in this database: CREATE EXTENSION hawser");
        }
        answer => answer?,
    };
    let [row] = answer.rows.as_slice() else {
        return because("the server gave no number of hawser.hand_over()");
    };
    let text = |at: usize| {
        row.get(at).and_then(Option::as_deref).and_then(|text| std::str::from_utf8(text).ok())
    };
    let Some(function) = text(0).and_then(|number| number.parse().ok()) else {
        return because("the server gave no number of hawser.hand_over()");
    };
    match (user, text(1)) {
        (None, _) => {}
        (Some(user), Some(role)) if role == user => {}
        (_, None | Some("")) => return because("the server has no hawser.pooler_role"),
        (Some(user), Some(role)) => {
            return because(format!(
                "`user` is \"{user}\", and the server's hawser.pooler_role is \"{role}\""
            ));
        }
    }
    let flags = text(2).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    let mut key = HandOverKey {
        key: secret.key(&challenge),
        function,
        pooler: pooler_number(),
        sent: 0,
        takes_transport: flags & FLAG_TRANSPORT != 0,
    };
    key.write_without_client(talk.out());
    talk.send().await?;
    let mut answered = false;
    for _ in 0..LOGIN_MESSAGES_MAX {
        match talk.receive().await? {
            (backend::FUNCTION_RESULT, _) => answered = true,
            (backend::READY_FOR_QUERY, body)
                if answered && body == [TransactionStatus::Idle.as_byte()] =>
            {
                return Ok(key);
            }
            (backend::ERROR, body) => return Err(refused(server_error(&body))),
            (backend::PARAMETER_STATUS | backend::NOTICE, _) => {}
            (kind, _) => {
                let what = format!("message of kind 0x{kind:02x} for a hand-over");
                return Err(TalkError::Protocol(what).into());
            }
        }
    }
    Err(TalkError::Protocol("no end of a hand-over".to_owned()).into())
}

/// The meaning of the server's error to the first message. Only errors of the extension itself
/// (handover.c, identity.c) will be the same the next time.
fn refused(error: ClientError) -> NotHandedOver {
    let says =
        format!("the server does not take its sessions to be handed over ({})", error.message);
    match &error.code.0 {
        // Also if the message is not from a holder of its secret.
        b"42501" => NotHandedOver::Because(format!(
            "{says}: hand_over_secret_file is to be the same as the server's hawser.secret_file"
        )),
        b"08P01" | b"0A000" | b"28000" => NotHandedOver::Because(says),
        // It ends, is out of memory, or the like.
        _ => NotHandedOver::Talk(TalkError::Server(Box::new(error))),
    }
}

/// No such function, schema or type.
fn is_about_names(code: &SqlState) -> bool {
    [&b"42883"[..], b"3F000", b"42704"].contains(&&code.0[..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_challenge_is_32_hexadecimal_digits() {
        let text = b"000102030405060708090a0b0c0d0eff";
        let challenge = parse_challenge(text).unwrap();
        assert_eq!((challenge[1], challenge[15]), (1, 255));
        for wrong in [&text[1..], b"", b"+0+1+2+3+4+5+6+7+8+9+a+b+c+d+e+f", &[0xc3; 32]] {
            assert_eq!(parse_challenge(wrong), None);
        }
    }

    #[test]
    fn the_secret_is_the_file_without_its_line_ends_and_must_be_private() {
        let path =
            std::env::temp_dir().join(format!("hawser-secret-{}", crate::process::random_u64()));
        let write = |bytes: &[u8], mode| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Secret::load(&path)
        };
        let good = [b'x'; 40];
        assert_eq!(write(&[&good[..], b"\r\n"].concat(), 0o600), Ok(Secret(good.into())));
        assert!(write(&good, 0o640).is_ok());
        for mode in [0o644, 0o604, 0o660, 0o602] {
            assert!(write(&good, mode).unwrap_err().contains("0600"));
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(write(b"short\n", 0o600).unwrap_err().contains("5 bytes"));
        assert!(write(&[b'x'; 2000], 0o600).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(Secret::load(&path).is_err());
        assert_eq!(format!("{:?}", Secret(good.into())), "Secret(..)");
    }

    #[test]
    fn an_error_that_is_not_the_extensions_says_nothing_of_the_secret() {
        let of = |code: &[u8; 5]| refused(ClientError::fatal(SqlState(*code), "no"));
        for (code, names_the_secret) in [(b"42501", true), (b"08P01", false), (b"0A000", false)] {
            let NotHandedOver::Because(why) = of(code) else { panic!("waiting mends nothing") };
            assert_eq!(why.contains("secret_file"), names_the_secret, "{why}");
        }
        for code in [b"57P01", b"53200", b"57014"] {
            assert!(matches!(of(code), NotHandedOver::Talk(TalkError::Server(_))));
        }
    }

    #[test]
    fn the_key_is_the_start_of_hmac_sha_256() {
        // python3: hmac.digest(b"k" * 32, bytes(range(16)), "sha256")[:16].hex()
        let challenge: [u8; 16] = std::array::from_fn(|at| at as u8);
        let key = Secret([b'k'; 32].into()).key(&challenge);
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "2c965294f1bf4e9de0053680b4985b15");
    }
}
