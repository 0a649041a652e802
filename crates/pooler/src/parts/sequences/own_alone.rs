//! The command that keeps the values of sequences for a question if the transaction has drawn them
//! itself, and discards all otherwise.
//!
//! # Model
//! nextval locks its sequence until the end of the transaction (`lock_and_open_sequence`,
//! sequence.c), in a mode that no command which changes a sequence takes alone. The values are kept
//! if each sequence that is asked for is locked like that, and has been called since it was set:
//! `setval(..., false)` locks, too, and keeps the value drawn before. lastval locks the sequence of
//! its value: if all locked ones were drawn, and it adds none, its sequence is one of those.
//!
//! # Invariants  an error within the command is not seen and leaves nothing; operators and
//!               functions are PostgreSQL's own whatever the search_path; names of sequences are
//!               looked up by it, like those of the question
//! # Limits      a sequence that the transaction sets by `setval(..., false)`, and another session
//!               draws from before the question, counts as drawn

use crate::parts::sequences::question::{Question, Sequence, Value};
use crate::relay::from_client::client_message::written::Parameters;
use crate::wire::frame;

/// Bytes of a name at most.
const NAME_BYTES_MAX: usize = 512;

/// The arguments that the Bind of a question gives it.
pub(super) struct Arguments<'a> {
    /// The number and types of parameters as in the Parse.
    pub(super) types: &'a [u8],
    pub(super) values: Parameters<'a>,
}

impl Arguments<'_> {
    /// The value of a parameter, as a string that PostgreSQL reads as text or regclass. `None`: not
    /// certain.
    fn value(&self, at: usize, is_text: bool) -> Option<Vec<u8>> {
        // Types, from pg_type.dat.
        const TEXTS: [u32; 3] = [19, 25, 1043];
        const NUMBERS: [u32; 4] = [20, 23, 26, 2205];
        const INT8: u32 = NUMBERS[0];
        const UNKNOWN: u32 = 705;
        let (count, types) = frame::take_u16(self.types)?;
        let declared = match at < usize::from(count) {
            true => frame::take_u32(types.get(4 * at..)?)?.0,
            false => 0,
        };
        let value = self.values.values.get(at).copied().flatten()?;
        let number = match declared {
            0 | UNKNOWN => !is_text,
            text if TEXTS.contains(&text) => false,
            number if NUMBERS.contains(&number) => true,
            _ => return None,
        };
        if !number || !self.values.is_binary(at) {
            return Some(value.to_vec());
        }
        let oid = match (declared, value) {
            (INT8, [0, 0, 0, 0, oid @ ..]) => oid,
            (INT8, _) => return None,
            (_, oid) => oid,
        };
        Some(u32::from_be_bytes(oid.try_into().ok()?).to_string().into_bytes())
    }
}

/// Appends a string constant, if every reader reads it in the same way.
fn write_literal(
    value: &Value,
    arguments: Option<&Arguments<'_>>,
    utf8: bool,
    out: &mut Vec<u8>,
) -> Option<()> {
    let value = match value {
        Value::Literal(literal) => literal.clone(),
        Value::Parameter { at, is_text } => arguments?.value(*at, *is_text)?,
    };
    let plain = |byte: &u8| match byte {
        b'\\' | b'$' => false,
        0x80.. => utf8,
        byte => *byte == b' ' || byte.is_ascii_graphic(),
    };
    if value.len() > NAME_BYTES_MAX
        || !value.iter().all(plain)
        || std::str::from_utf8(&value).is_err()
    {
        return None;
    }
    out.push(b'\'');
    for byte in value {
        out.extend(std::iter::repeat_n(byte, 1 + usize::from(byte == b'\'')));
    }
    out.push(b'\'');
    Some(())
}

/// The command. `utf8`: texts are in UTF-8. `None`: it is not known which sequences are asked for.
pub(super) fn own_alone(
    question: &Question,
    arguments: Option<&Arguments<'_>>,
    utf8: bool,
) -> Option<Vec<u8>> {
    const START: &[u8] = b"DO $hawser$#variable_conflict use_column
DECLARE hawser_own pg_catalog.oid[]; hawser_asked pg_catalog.oid[]; hawser_locked pg_catalog.int8; \
BEGIN BEGIN
SELECT pg_catalog.array_agg(h.r) FILTER (WHERE h.d), pg_catalog.count(*) \
INTO hawser_own, hawser_locked FROM (SELECT l.relation AS r, \
pg_catalog.bool_or(l.mode OPERATOR(pg_catalog.=) 'RowExclusiveLock') AND pg_catalog.bool_and(\
l.mode OPERATOR(pg_catalog.=) ANY (ARRAY['RowExclusiveLock', 'AccessShareLock'])) AS d \
FROM pg_catalog.pg_locks l \
JOIN pg_catalog.pg_sequence s ON s.seqrelid OPERATOR(pg_catalog.=) l.relation \
WHERE l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() GROUP BY l.relation) h;
hawser_asked := ARRAY[";
    const ASKED: &[u8] = b"]::pg_catalog.oid[];
IF hawser_own OPERATOR(pg_catalog.@>) hawser_asked AND NOT EXISTS (\
SELECT FROM pg_catalog.unnest(hawser_asked) o \
WHERE pg_catalog.pg_sequence_last_value(o::pg_catalog.regclass) IS NULL) THEN ";
    const LASTVAL: &[u8] = b"
IF pg_catalog.cardinality(hawser_own) OPERATOR(pg_catalog.=) hawser_locked AND NOT EXISTS (\
SELECT FROM pg_catalog.unnest(hawser_own) o \
WHERE pg_catalog.pg_sequence_last_value(o::pg_catalog.regclass) IS NULL) THEN
PERFORM pg_catalog.lastval();
IF (SELECT pg_catalog.count(DISTINCT l.relation) FROM pg_catalog.pg_locks l \
JOIN pg_catalog.pg_sequence s ON s.seqrelid OPERATOR(pg_catalog.=) l.relation \
WHERE l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()) \
OPERATOR(pg_catalog.=) hawser_locked THEN RETURN; END IF; END IF; ";
    const END: &[u8] = b"END IF;
EXCEPTION WHEN OTHERS THEN NULL; END; DISCARD SEQUENCES; END$hawser$";
    let mut command = START.to_vec();
    for (n, sequence) in question.sequences.iter().enumerate() {
        if n > 0 {
            command.extend_from_slice(b", ");
        }
        match sequence {
            Sequence::Named(name) => write_literal(name, arguments, utf8, &mut command)?,
            Sequence::Serial { table, column } => {
                command.extend_from_slice(b"pg_catalog.pg_get_serial_sequence(");
                write_literal(table, arguments, utf8, &mut command)?;
                command.extend_from_slice(b", ");
                write_literal(column, arguments, utf8, &mut command)?;
                command.push(b')');
            }
        }
        command.extend_from_slice(b"::pg_catalog.regclass::pg_catalog.oid");
    }
    command.extend_from_slice(ASKED);
    command.extend_from_slice(if question.lastval { LASTVAL } else { b"RETURN; " });
    command.extend_from_slice(END);
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(types: &[u32], formats: &[u16], values: &[Option<&[u8]>], is_text: bool) -> String {
        let count = |all: usize| u16::try_from(all).unwrap().to_be_bytes();
        let mut parse = count(types.len()).to_vec();
        types.iter().for_each(|oid| parse.extend_from_slice(&oid.to_be_bytes()));
        let mut bind = count(formats.len()).to_vec();
        formats.iter().for_each(|format| bind.extend_from_slice(&format.to_be_bytes()));
        bind.extend_from_slice(&count(values.len()));
        for value in values {
            let length = value.map_or(-1, |value| i32::try_from(value.len()).unwrap());
            bind.extend_from_slice(&length.to_be_bytes());
            bind.extend_from_slice(value.unwrap_or_default());
        }
        bind.extend_from_slice(&[0, 0]);
        let values = Parameters::read(&bind).unwrap();
        let value = Arguments { types: &parse, values }.value(values_last(types), is_text);
        value.map_or("-".to_owned(), |value| String::from_utf8(value).unwrap())
    }

    /// The position of the last one that is declared.
    fn values_last(types: &[u32]) -> usize {
        types.len().saturating_sub(1)
    }

    #[test]
    fn a_parameter_is_a_name_or_an_oid() {
        let name: Option<&[u8]> = Some(b"s_id_seq");
        let oid: Option<&[u8]> = Some(&[0, 0, 0x40, 1]);
        let long: Option<&[u8]> = Some(&[0, 0, 0, 0, 0, 0, 0x40, 1]);
        assert_eq!(value(&[], &[], &[name], false), "s_id_seq");
        assert_eq!(value(&[0], &[0], &[name], true), "s_id_seq");
        assert_eq!(value(&[0], &[1], &[name], true), "s_id_seq");
        assert_eq!(value(&[25], &[1], &[name], false), "s_id_seq");
        assert_eq!(value(&[], &[1], &[oid], false), "16385");
        assert_eq!(value(&[26], &[1], &[oid], true), "16385");
        assert_eq!(value(&[20], &[1], &[long], false), "16385");
        assert_eq!(value(&[0, 2205], &[0, 1], &[None, oid], false), "16385");
        assert_eq!(value(&[0, 2205], &[1, 0], &[None, name], false), "s_id_seq");
        for (types, value_sent) in [(&[0u32][..], name), (&[20], oid), (&[17], name), (&[0], None)]
        {
            assert_eq!(value(types, &[1], &[value_sent], false), "-", "{types:?}");
        }
        assert_eq!(value(&[0, 0], &[], &[name], false), "-", "fewer than declared");
    }

    #[test]
    fn a_name_that_could_be_read_otherwise_is_not_written() {
        let write = |name: &[u8], utf8| {
            let sequences = vec![Sequence::Named(Value::Literal(name.to_vec()))];
            let question = Question { sequences, lastval: false };
            own_alone(&question, None, utf8).map(|command| String::from_utf8(command).unwrap())
        };
        assert!(write(b"a.\"It's\"", false).unwrap().contains("'a.\"It''s\"'::"));
        assert!(write("größe".as_bytes(), true).unwrap().contains("'größe'::"));
        assert_eq!(write("größe".as_bytes(), false), None);
        let longest = vec![b'a'; NAME_BYTES_MAX];
        assert!(write(&longest, false).is_some());
        let longer = vec![b'a'; NAME_BYTES_MAX + 1];
        for name in [&b"a\\"[..], b"$hawser$", b"a\0", b"\xff", b"a\nb", &longer] {
            assert_eq!(write(name, true), None, "{}", name.escape_ascii());
        }
    }
}
