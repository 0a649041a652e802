//! PgBouncer's `userlist.txt`: users and their secrets.
//!
//! # Model
//! ```text
//! "joe" "secret"
//! "ann" "md50123456789abcdef0123456789abcdef"
//! "bob" "SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk...:c2VydmVy..."     whatever follows is ignored
//! ; a comment
//! ```
//! A quote inside of a field is written twice. As in PgBouncer the last line of a user counts.
//!
//! # Limits
//! Fields end on the line on which they begin; [`USERS_MAX`] users.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use super::records::{Disk, FILE_SIZE_MAX, FileError, FileErrors, Files, Location};
use super::secret::Secret;

/// The most users of a file.
pub const USERS_MAX: usize = 1_000_000;

/// The users of a file.
#[derive(Debug, Clone, Default)]
pub struct Userlist {
    secrets: HashMap<String, Secret>,
}

impl Userlist {
    /// Reads the file `path`. All errors of the file are returned.
    pub fn load(path: &Path) -> Result<Self, FileErrors> {
        Self::load_from(&Disk, path)
    }

    /// The same from `files`.
    pub fn load_from(files: &dyn Files, path: &Path) -> Result<Self, FileErrors> {
        let bytes = files.read(path).and_then(|bytes| {
            if bytes.len() > FILE_SIZE_MAX {
                let message = format!("the file is larger than {FILE_SIZE_MAX} bytes");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
            }
            Ok(bytes)
        });
        match bytes {
            Ok(bytes) => Self::parse(path, &bytes),
            Err(error) => {
                let location = Location { file: path.into(), line: 1, column: 1 };
                let message = format!("could not open file \"{}\": {error}", path.display());
                FileErrors::unless_any(vec![FileError { location, message }], Self::default())
            }
        }
    }

    /// Reads `bytes`, which errors call `path`.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, FileErrors> {
        let mut list = Self::default();
        let mut errors = Vec::new();
        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            if list.secrets.len() > USERS_MAX {
                errors.push(failure(path, index, 1, format!("more than {USERS_MAX} users")));
                break;
            }
            match parse_line(line) {
                Ok(Some((user, secret))) => {
                    list.secrets.insert(user, secret);
                }
                Ok(None) => {}
                Err((at, message)) => {
                    let column = 1 + String::from_utf8_lossy(&line[..at]).chars().count();
                    errors.push(failure(path, index, column, message));
                }
            }
        }
        FileErrors::unless_any(errors, list)
    }

    /// The secret of `user`, if the file has the user at all.
    pub fn get(&self, user: &str) -> Option<&Secret> {
        self.secrets.get(user)
    }

    /// How many users there are.
    pub fn len(&self) -> usize {
        self.secrets.len()
    }

    /// Whether there is no user.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// The users and their secrets, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Secret)> {
        self.secrets.iter().map(|(user, secret)| (user.as_str(), secret))
    }
}

fn failure(path: &Path, index: usize, column: usize, message: String) -> FileError {
    FileError { location: Location { file: path.into(), line: index + 1, column }, message }
}

/// The error is a byte of the line and what is wrong there.
type LineError = (usize, String);

fn parse_line(line: &[u8]) -> Result<Option<(String, Secret)>, LineError> {
    let mut at = skip_blanks(line, 0);
    if at == line.len() || line[at] == b';' {
        return Ok(None);
    }
    let user_at = at;
    let user = quoted(line, &mut at, "the user's name")?;
    if user.is_empty() {
        return Err((user_at, "the user's name is empty".to_owned()));
    }
    at = skip_blanks(line, at);
    let secret_at = at;
    let secret = quoted(line, &mut at, "the user's password or secret")?;
    let secret = Secret::parse(Some(&secret)).map_err(|error| (secret_at, error.to_string()))?;
    Ok(Some((user, secret)))
}

fn skip_blanks(line: &[u8], from: usize) -> usize {
    let blanks = line[from..].iter().take_while(|byte| byte.is_ascii_whitespace());
    from + blanks.count()
}

/// Reads a field in quotes at `at`, which moves past it.
fn quoted(line: &[u8], at: &mut usize, what: &str) -> Result<String, LineError> {
    let start = *at;
    if line.get(start) != Some(&b'"') {
        return Err((start, format!("{what} is expected here, in double quotes")));
    }
    let mut value = Vec::new();
    let mut index = start + 1;
    loop {
        match (line.get(index), line.get(index + 1)) {
            (None, _) => return Err((start, format!("the closing quote of {what} is missing"))),
            (Some(b'"'), Some(b'"')) => {
                value.push(b'"');
                index += 2;
            }
            (Some(b'"'), _) => break,
            (Some(0), _) => return Err((index, format!("{what} holds a NUL byte"))),
            (Some(&byte), _) => {
                value.push(byte);
                index += 1;
            }
        }
    }
    *at = index + 1;
    String::from_utf8(value).map_err(|_| (start, format!("{what} is not valid UTF-8")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Userlist, FileErrors> {
        Userlist::parse(Path::new("userlist.txt"), text.as_bytes())
    }

    #[test]
    fn a_file_of_pgbouncer_is_read() {
        let list = parse(
            "\"joe\" \"secret\"\r\n\n; comment\n  \"a \"\"b\"\"\"\t\"p\"\"w\" ignored \"x\n\
             \"md\" \"md50123456789abcdef0123456789abcdef\"\n\"none\" \"\"\n\"é\" \"1\"\n\"é\"\"2\" \"3\"\n\"é\" \"2\"",
        )
        .unwrap();
        assert_eq!(list.len(), 6);
        assert_eq!(list.get("joe"), Some(&Secret::Plain("secret".into())));
        assert_eq!(list.get("a \"b\""), Some(&Secret::Plain("p\"w".into())));
        assert!(matches!(list.get("md"), Some(Secret::Md5(_))));
        assert_eq!(list.get("none"), Some(&Secret::None));
        assert_eq!(list.get("é"), Some(&Secret::Plain("2".into())), "the last one counts");
        assert_eq!(list.get("nobody"), None);
    }

    #[test]
    fn errors_say_where_and_never_show_a_secret() {
        let errors = parse(
            "joe \"hidden\"\n\"joe\n\"joe\" hidden\n\"joe\"\n\"é\" \"SCRAM-SHA-256$hidden\"\n\"\" \"x\"\n\"x\" \"hidden",
        )
        .unwrap_err()
        .to_string();
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(
            lines[0],
            "userlist.txt:1:1: the user's name is expected here, in double quotes"
        );
        assert_eq!(lines[1], "userlist.txt:2:1: the closing quote of the user's name is missing");
        assert_eq!(
            lines[2],
            "userlist.txt:3:7: the user's password or secret is expected here, in double quotes"
        );
        assert!(lines[3].starts_with("userlist.txt:4:6: "), "{}", lines[3]);
        assert!(lines[4].starts_with("userlist.txt:5:5: invalid SCRAM secret"), "{}", lines[4]);
        assert_eq!(lines[5], "userlist.txt:6:1: the user's name is empty");
        assert!(lines[6].starts_with("userlist.txt:7:5: the closing quote"), "{}", lines[6]);
        assert!(!errors.contains("hidden"));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in prop::collection::vec(
            prop::sample::select(b"\"\"\"ab; \n\r\x00\xff$".to_vec()), 0..60)) {
            let _ = Userlist::parse(Path::new("u"), &bytes);
        }
    }
}
