//! What server processes keep until they exit, and some clients must avoid.
//!
//! # The traps
//! * A process that has used a temporary table takes no other `temp_buffers`.
//! * A process into which a library has been loaded (PL/pgSQL, by the first call of a function) refuses
//!   names with the library's prefix that the library does not define, where a new session takes them.
//!
//! # Model
//! What the processes of a pool keep is numbered, and a set of it is one word. A backend goes to no client
//! that avoids something its process keeps: one that has set another `temp_buffers`, or such a name, or
//! whose first message may do so.
//!
//! # Limits
//! An item without a number of its own shares one with others of its kind: it is avoided more often
//! than necessary. A client that has a backend already (in a transaction block, in session mode)
//! keeps it, and gets the server's error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::session::settings::{Settings, is_custom};

/// Items of one kind that a pool distinguishes.
const KIND_MAX: usize = 16;

/// How much of a message is searched for what it may set.
const TEXT_BYTES_MAX: usize = 16 * 1024;

const TEMP_BUFFERS: &[u8] = b"temp_buffers";

/// A set of what a process keeps, or a client avoids.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lasting(u32);

impl Lasting {
    /// Nothing.
    pub const NONE: Lasting = Lasting(0);

    /// Buffers for temporary tables, of whatever size.
    const BUFFERS: Lasting = Lasting(0xffff_0000);

    /// What is in either.
    #[must_use]
    pub fn and(self, other: Lasting) -> Lasting {
        Lasting(self.0 | other.0)
    }

    /// Whether something is in both.
    #[inline]
    pub fn meets(self, avoided: Lasting) -> bool {
        self.0 & avoided.0 != 0
    }

    /// Whether buffers for temporary tables are in it.
    pub fn has_buffers(self) -> bool {
        self.meets(Self::BUFFERS)
    }

    fn without(self, other: Lasting) -> Lasting {
        Lasting(self.0 & !other.0)
    }

    fn of_library(at: usize) -> Lasting {
        Lasting(1 << at.min(KIND_MAX - 1))
    }

    fn of_size(at: usize) -> Lasting {
        Lasting(1 << (KIND_MAX + at.min(KIND_MAX - 1)))
    }
}

/// A value of `temp_buffers` in kB. `None`: it is the server's own, or cannot be read.
pub fn buffers_of(settings: &Settings) -> Option<u64> {
    settings.get(TEMP_BUFFERS).and_then(kilobytes)
}

/// The server's blocks, or a whole number of a unit.
fn kilobytes(value: &[u8]) -> Option<u64> {
    let value = std::str::from_utf8(value).ok()?.trim_ascii();
    let unit = value.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let number: u64 = value[..value.len() - unit.len()].parse().ok()?;
    let factor = match unit.trim_ascii() {
        "" => 8,
        "kB" => 1,
        "MB" => 1 << 10,
        "GB" => 1 << 20,
        "TB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// A library of a pool's processes.
#[derive(Debug)]
struct Library {
    /// What stands before the dot of its settings' names, in lower case.
    prefix: Box<[u8]>,
    /// The whole names of these.
    names: Vec<Box<[u8]>>,
}

/// What a pool has seen.
#[derive(Debug, Default)]
struct Seen {
    libraries: Vec<Library>,
    /// Sizes of buffers: see [`buffers_of`].
    sizes: Vec<Option<u64>>,
}

impl Seen {
    /// What takes a setting of this name, in lower case, only if it is one of a library's.
    fn refusing(&self, name: &[u8]) -> Lasting {
        let prefix = name.split(|byte| *byte == b'.').next().unwrap_or_default();
        match self.libraries.iter().position(|library| *library.prefix == *prefix) {
            Some(at) if !self.libraries[at].names.iter().any(|known| **known == *name) => {
                Lasting::of_library(at)
            }
            _ => Lasting::NONE,
        }
    }

    /// All buffers except those of this size.
    fn other_buffers(&self, size: Option<u64>) -> Lasting {
        let own = self.sizes.iter().take(KIND_MAX - 1).position(|known| *known == size);
        Lasting::BUFFERS.without(own.map_or(Lasting::NONE, Lasting::of_size))
    }
}

/// The same, shared by all loops.
#[derive(Debug, Default)]
pub(super) struct KnownLasting {
    /// Whether a process of the pool has kept anything yet.
    any: AtomicBool,
    seen: Mutex<Seen>,
}

impl KnownLasting {
    fn with<T>(&self, then: impl FnOnce(&mut Seen) -> T) -> T {
        then(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A process has loaded a library that defines the setting of this name, in lower case.
    pub(super) fn loaded_library(&self, name: &[u8]) -> Lasting {
        let prefix = name.split(|byte| *byte == b'.').next().unwrap_or_default();
        self.any.store(true, Ordering::Relaxed);
        self.with(|seen| {
            let libraries = &mut seen.libraries;
            let at = libraries.iter().position(|known| *known.prefix == *prefix);
            let at = at.unwrap_or_else(|| {
                libraries.push(Library { prefix: prefix.into(), names: Vec::new() });
                libraries.len() - 1
            });
            let names = &mut libraries[at].names;
            if !names.iter().any(|known| **known == *name) {
                names.push(name.into());
            }
            Lasting::of_library(at)
        })
    }

    /// A process has made buffers of this size for temporary tables.
    pub(super) fn buffers(&self, size: Option<u64>) -> Lasting {
        self.any.store(true, Ordering::Relaxed);
        self.with(|seen| {
            let sizes = &mut seen.sizes;
            let at = sizes.iter().position(|known| *known == size).unwrap_or_else(|| {
                if sizes.len() < KIND_MAX {
                    sizes.push(size);
                    return sizes.len() - 1;
                }
                KIND_MAX
            });
            Lasting::of_size(at)
        })
    }

    /// What a client with these settings must avoid.
    pub(super) fn avoided_by(&self, settings: &Settings) -> Lasting {
        if !self.any.load(Ordering::Relaxed) {
            return Lasting::NONE;
        }
        let sizes = settings.get(TEMP_BUFFERS).is_some();
        if !sizes && !settings.has_custom() {
            return Lasting::NONE;
        }
        self.with(|seen| {
            let names = settings.iter().filter(|(name, _)| is_custom(name));
            let names = names.fold(Lasting::NONE, |all, (name, _)| all.and(seen.refusing(name)));
            match sizes {
                true => names.and(seen.other_buffers(buffers_of(settings))),
                false => names,
            }
        })
    }

    /// What a message must avoid that may set what its text names.
    pub(super) fn avoided_by_text(&self, text: &[u8]) -> Lasting {
        if !self.any.load(Ordering::Relaxed) {
            return Lasting::NONE;
        }
        let text = text[..text.len().min(TEXT_BYTES_MAX)].to_ascii_lowercase();
        if places(&text, b"set").next().is_none() {
            return Lasting::NONE;
        }
        let buffers = match places(&text, TEMP_BUFFERS).next() {
            Some(_) => Lasting::BUFFERS,
            None => Lasting::NONE,
        };
        self.with(|seen| {
            let prefixes =
                seen.libraries.iter().map(|library| [&library.prefix, &b"."[..]].concat());
            let prefixes: Vec<_> = prefixes.collect();
            let names = prefixes.iter().flat_map(|prefix| places(&text, prefix)).map(|at| {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.$".contains(byte);
                let length = text[at..].iter().take_while(|byte| is_part(byte)).count();
                seen.refusing(&text[at..at + length])
            });
            names.fold(buffers, Lasting::and)
        })
    }
}

/// Where these bytes stand in a text.
fn places<'a>(text: &'a [u8], searched: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let all = text.windows(searched.len()).enumerate();
    all.filter(move |(_, part)| *part == searched).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::settings::SettingsBuilder;

    fn settings(name: &str, value: &str) -> Settings {
        let mut settings = SettingsBuilder::new();
        settings.set(name.as_bytes(), value.as_bytes());
        settings.build()
    }

    #[test]
    fn buffers_of_another_size_are_avoided_by_who_has_set_one() {
        let known = KnownLasting::default();
        assert_eq!(known.avoided_by(&settings("temp_buffers", "16MB")), Lasting::NONE);
        let (large, own) = (known.buffers(Some(16 * 1024)), known.buffers(None));
        assert!(large.has_buffers() && large != own);
        let avoided = known.avoided_by(&settings("temp_buffers", "16MB"));
        assert!(!large.meets(avoided) && own.meets(avoided));
        assert_eq!(known.avoided_by(&settings("temp_buffers", "2048")), avoided, "blocks");
        let avoided = known.avoided_by(&settings("temp_buffers", "8MB"));
        assert!(large.meets(avoided) && own.meets(avoided));
        assert_eq!(known.avoided_by(&settings("work_mem", "8MB")), Lasting::NONE);
    }

    #[test]
    fn what_a_text_may_set_is_not_known_before() {
        let known = KnownLasting::default();
        let buffers = known.buffers(Some(8192));
        assert!(buffers.meets(known.avoided_by_text(b"Set Temp_Buffers = '8MB'")));
        assert!(!buffers.meets(known.avoided_by_text(b"show temp_buffers")));
        assert!(!buffers.meets(known.avoided_by_text(b"SET work_mem = '8MB'")));
    }

    #[test]
    fn a_name_that_a_library_does_not_define_avoids_it() {
        let known = KnownLasting::default();
        let library = known.loaded_library(b"plpgsql.check_asserts");
        assert_eq!(known.loaded_library(b"plpgsql.extra_errors"), library);
        let other = known.loaded_library(b"pg_trgm.similarity_threshold");
        assert!(!library.meets(other) && !library.has_buffers());
        for (name, avoids) in
            [("plpgsql.typo", true), ("plpgsql.check_asserts", false), ("my.check_asserts", false)]
        {
            assert_eq!(library.meets(known.avoided_by(&settings(name, "1"))), avoids, "{name}");
            let text = format!("SELECT 1; set {name}=1").to_ascii_uppercase();
            assert_eq!(library.meets(known.avoided_by_text(text.as_bytes())), avoids, "{text}");
        }
        assert!(!other.meets(known.avoided_by(&settings("plpgsql.typo", "1"))));
    }

    #[test]
    fn what_has_no_number_of_its_own_is_avoided_with_others() {
        let known = KnownLasting::default();
        for size in 0..40 {
            known.buffers(Some(size));
            known.loaded_library(format!("library{size}.setting").as_bytes());
        }
        let last = known.buffers(Some(39));
        assert!(last.meets(known.avoided_by(&settings("temp_buffers", "39kB"))));
        let first = known.buffers(Some(0));
        assert!(!first.meets(known.avoided_by(&settings("temp_buffers", "0kB"))));
        let last = known.loaded_library(b"library39.setting");
        assert!(last.meets(known.avoided_by(&settings("library38.other", "1"))));
        assert!(!last.meets(known.avoided_by(&settings("library38.setting", "1"))));
    }
}
