//! The kernel's own types (BTF, Documentation/bpf/btf.rst): the number of a function, and where a
//! member of a structure is.
//!
//! # Model
//! ```text
//!   header │ types: (name, kind and count, size), then what the kind has │ strings
//! ```
//! Types have no index: they are counted, from 1, as they are read.
//!
//! # Invariants
//! Whatever the bytes are, reading ends, and nothing outside of them is read. A kind that is not
//! known ends it: what follows cannot be found then.

use std::fs::File;
use std::io::{self, Read};

/// Where the running kernel has its own (CONFIG_DEBUG_INFO_BTF, Linux 5.4).
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";
/// That of a distribution's kernel has 5 to 10 MB.
const BYTES_MAX: u64 = 64 << 20;
/// `BTF_MAGIC`.
const MAGIC: u16 = 0xeb9f;
/// `struct btf_type`.
const TYPE_BYTES: usize = 12;
/// `struct btf_member`.
const MEMBER_BYTES: usize = 12;

/// Structures without a name within each other that are looked into.
const NESTED_MAX: u32 = 4;

// BTF_KIND_*
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;

/// Reads the running kernel's.
///
/// # Errors
/// As open(2): NotFound if the kernel has none. InvalidData: it is larger than any.
pub fn of_kernel() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(KERNEL)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if read as u64 > BYTES_MAX { Err(io::ErrorKind::InvalidData.into()) } else { Ok(bytes) }
}

/// Types.
#[derive(Clone, Copy, Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    kind: u32,
    /// `kind_flag`: of a member's offset, the upper 8 bits are something else.
    flag: bool,
    /// What the kind has.
    body: &'a [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

impl<'a> Btf<'a> {
    /// Finds the parts; `None` if that is no BTF of this machine's byte order.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let magic = u16::from_ne_bytes(*bytes.first_chunk()?);
        if magic != MAGIC {
            return None;
        }
        let part = |offset: usize, length: usize| -> Option<&'a [u8]> {
            let [header, offset, length] =
                [u32_at(bytes, 4)?, u32_at(bytes, offset)?, u32_at(bytes, length)?];
            let begin = (header as usize).checked_add(offset as usize)?;
            bytes.get(begin..begin.checked_add(length as usize)?)
        };
        Some(Self { types: part(8, 12)?, strings: part(16, 20)? })
    }

    /// The types in their order, from number 1.
    fn types(self) -> impl Iterator<Item = (u32, Type<'a>)> {
        let mut rest = self.types;
        (1..).map_while(move |number| {
            let (name, info) = (u32_at(rest, 0)?, u32_at(rest, 4)?);
            let (kind, count) = (info >> 24 & 0x1f, info as usize & 0xffff);
            let bytes = TYPE_BYTES.checked_add(body_bytes(kind, count)?)?;
            let body = rest.get(TYPE_BYTES..bytes)?;
            rest = &rest[bytes..];
            Some((number, Type { name, kind, flag: info >> 31 == 1, body }))
        })
    }

    fn is_named(self, name: u32, wanted: &str) -> bool {
        let found = self.strings.get(name as usize..).and_then(|rest| rest.get(..=wanted.len()));
        found.is_some_and(|found| found.split_last() == Some((&0, wanted.as_bytes())))
    }

    /// The number of a function.
    pub fn function(self, name: &str) -> Option<u32> {
        let mut functions = self.types().filter(|(_, one)| one.kind == FUNCTION);
        functions.find(|(_, one)| self.is_named(one.name, name)).map(|(number, _)| number)
    }

    /// The number of a structure.
    pub fn structure(self, name: &str) -> Option<u32> {
        let mut structures = self.types().filter(|(_, one)| one.kind == STRUCT);
        structures.find(|(_, one)| self.is_named(one.name, name)).map(|(number, _)| number)
    }

    /// Where a member of a member is, in bytes, where that is a structure, with a name or without.
    pub fn member_within(self, structure: &str, member: &str, within: &str) -> Option<u32> {
        let structures = self.types().filter(|(_, one)| one.kind == STRUCT);
        let mut named = structures.filter(|(_, one)| self.is_named(one.name, structure));
        named.find_map(|(_, one)| {
            let mut entries = one.body.chunks_exact(MEMBER_BYTES);
            let entry = entries
                .find(|entry| u32_at(entry, 0).is_some_and(|name| self.is_named(name, member)))?;
            let number = u32_at(entry, 4)?;
            let (_, inner) = self.types().find(|(of, _)| *of == number)?;
            let offset = self.member_of(inner, within, NESTED_MAX)?;
            matches!(inner.kind, STRUCT | UNION).then_some(())?;
            self.member_of(one, member, 0)?.checked_add(offset)
        })
    }

    /// Where a member of a structure is, in bytes; also one of a structure without a name within it.
    pub fn member(self, structure: &str, member: &str) -> Option<u32> {
        let structures = self.types().filter(|(_, one)| one.kind == STRUCT);
        let mut named = structures.filter(|(_, one)| self.is_named(one.name, structure));
        named.find_map(|(_, one)| self.member_of(one, member, NESTED_MAX))
    }

    fn member_of(self, one: Type<'a>, member: &str, levels: u32) -> Option<u32> {
        let entries = || one.body.chunks_exact(MEMBER_BYTES);
        let offset = |entry: &[u8]| {
            let bits = u32_at(entry, 8)? & if one.flag { 0xff_ffff } else { u32::MAX };
            (bits % 8 == 0).then_some(bits / 8)
        };
        let is_it =
            |entry: &&[u8]| u32_at(entry, 0).is_some_and(|name| self.is_named(name, member));
        if let Some(found) = entries().find(is_it) {
            return offset(found);
        }
        let levels = levels.checked_sub(1)?;
        entries().filter(|entry| u32_at(entry, 0) == Some(0)).find_map(|entry| {
            let number = u32_at(entry, 4)?;
            let (_, within) = self.types().find(|(of, _)| *of == number)?;
            if !matches!(within.kind, STRUCT | UNION) {
                return None;
            }
            offset(entry)?.checked_add(self.member_of(within, member, levels)?)
        })
    }
}

/// The length of what follows a type's head.
fn body_bytes(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => count * MEMBER_BYTES,
        // ENUM, FUNC_PROTO
        6 | 13 => count * 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types, each (name, info, size, body), after a header.
    fn built(types: &[(&str, u32, &[u32])]) -> Vec<u8> {
        let mut strings = vec![0];
        let mut name = |text: &str| {
            let at = strings.len() as u32;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        let mut words = Vec::new();
        for (text, info, body) in types {
            words.extend([name(text), *info, 0]);
            words.extend_from_slice(body);
        }
        let member = name("member");
        let words: Vec<u32> =
            words.iter().map(|w| if *w == u32::MAX { member } else { *w }).collect();
        let types: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let lengths = (types.len() as u32, strings.len() as u32);
        for word in [24, 0, lengths.0, lengths.0, lengths.1] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    fn sample() -> Vec<u8> {
        built(&[
            ("int", 1 << 24, &[0]),
            ("update", FUNCTION << 24, &[]),
            // Another of this name, without the member, comes first.
            ("net", STRUCT << 24 | 1, &[1, 1, 64]),
            ("net", STRUCT << 24 | 2, &[1, 1, 0, u32::MAX, 1, 320]),
            ("bits", STRUCT << 24 | 1 << 31 | 1, &[u32::MAX, 1, 8 << 24 | 16]),
            ("odd", STRUCT << 24 | 1, &[u32::MAX, 1, 3]),
            ("", UNION << 24 | 1, &[u32::MAX, 1, 64]),
            ("mm", STRUCT << 24 | 2, &[1, 1, 0, 0, 7, 128]),
            // Without a name, and itself.
            ("", STRUCT << 24 | 1, &[0, 9, 0]),
            ("round", STRUCT << 24 | 1, &[0, 9, 0]),
        ])
    }

    #[test]
    fn functions_and_members_are_found() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.function("update"), Some(2));
        assert_eq!(btf.function("int"), None);
        assert_eq!(btf.function("upd"), None);
        assert_eq!(btf.member("net", "member"), Some(40));
        assert_eq!(btf.member("bits", "member"), Some(2));
        assert_eq!(btf.member("odd", "member"), None);
        assert_eq!(btf.member("net", "other"), None);
        assert_eq!(btf.member("mm", "member"), Some(24), "16 and 8 within");
        assert_eq!(btf.member("round", "member"), None);
        assert_eq!(btf.structure("net"), Some(3));
        assert_eq!(btf.structure("update"), None);
    }

    #[test]
    fn no_bytes_do_harm() {
        let bytes = sample();
        for length in 0..bytes.len() {
            look(&bytes[..length]);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                look(&changed);
            }
        }
    }

    fn look(bytes: &[u8]) {
        if let Some(btf) = Btf::parse(bytes) {
            let _ = (btf.function("update"), btf.member("net", "member"));
        }
    }

    #[test]
    fn the_running_kernel_s_are_read_where_it_has_them() {
        let Ok(bytes) = of_kernel() else { return };
        let btf = Btf::parse(&bytes).unwrap();
        assert!(btf.function("schedule").is_some());
        assert!(btf.member("task_struct", "nsproxy").is_some_and(|at| at > 0));
        let backlog = btf.member("sock", "sk_backlog").unwrap();
        assert_eq!(btf.member_within("sock", "sk_backlog", "rmem_alloc"), Some(backlog));
        let tail = btf.member_within("sock", "sk_backlog", "tail").unwrap();
        assert!(tail > backlog);
        assert_eq!(btf.member_within("sock", "sk_backlog", "none"), None);
    }
}
