//! What a DO block resets, by its source.
//!
//! # Model   words show that a block may change settings, not which: its client keeps its server connection,
//!           and nothing is asked. What it resets is then at the server connection's start value, where the
//!           client's is meant. So a block that has a RESET is read as the source of a function is.
//! # Limits  a text that is nothing but `DO $$ ... $$`, in PL/pgSQL. Where the source does not show all
//!           settings that the block may change (EXECUTE of a variable, RESET ALL), of those that no server
//!           reports nothing is known, as before.

use super::{Effects, Resetting};
use crate::session::part::PartSet;
use crate::session::scan::body::scan_body;
use crate::session::scan::{Findings, Verb};

/// The source of `DO [LANGUAGE plpgsql] $tag$ source $tag$`.
fn source(text: &[u8]) -> Option<&[u8]> {
    let (head, rest) = text.split_at(text.iter().position(|byte| *byte == b'$')?);
    let words: Vec<_> = head
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(<[u8]>::to_ascii_lowercase)
        .collect();
    let words: Vec<_> = words.iter().map(Vec::as_slice).collect();
    if !matches!(words[..], [b"do"] | [b"do", b"language", b"plpgsql"]) {
        return None;
    }
    let tag = &rest[..rest.iter().skip(1).position(|byte| *byte == b'$')? + 2];
    let body = &rest[tag.len()..];
    let end = body.windows(tag.len()).position(|at| at == tag)?;
    let tail = &body[end + tag.len()..];
    let ends = tail.iter().all(|byte| byte.is_ascii_whitespace() || *byte == b';');
    ends.then(|| &body[..end])
}

impl Effects {
    /// Of a text that has been scanned: with what it resets, if it is a DO block.
    pub(in crate::engine) fn and_of_block(
        mut self,
        text: &[u8],
        findings: &Findings,
        reported: impl Fn(&[u8]) -> bool,
    ) -> Self {
        if !matches!(findings.single().map(|single| &single.verb), Some(Verb::Do)) {
            return self;
        }
        let Some(source) = source(text) else { return self };
        let found = scan_body(source, true);
        let block = Self::of_body(&found, reported);
        if block.resets == Resetting::No {
            return self;
        }
        let others = self.pins.minus(PartSet::ANY_SETTING);
        let all_known =
            !(block.vague || found.unsure || found.truncated || found.dynamic || findings.unsure)
                && others.minus(block.pins).is_empty();
        if !all_known {
            self.resets = block.resets;
            return self;
        }
        Self {
            pins: block.pins,
            names: block.names,
            local_names: block.local_names,
            vague: false,
            several: true,
            spoils: block.spoils,
            resets: block.resets,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::part::Part;
    use crate::session::scan::ScanOptions;

    #[test]
    fn the_source_of_a_block_stands_in_dollars() {
        for text in
            ["DO $$ x $$", " do $$ x $$ ; ", "Do\nLANGUAGE plpgsql $a$ x $a$", "do $a$ x $a$;"]
        {
            assert_eq!(source(text.as_bytes()), Some(&b" x "[..]), "{text}");
        }
        for text in [
            "do 'x'",
            "do $$ x $$ language plperl",
            "do language plpython3u $$ x $$",
            "do /* a */ $$ x $$",
            "do $$ x",
            "do $$ x $$; select 1",
        ] {
            assert_eq!(source(text.as_bytes()), None, "{text}");
        }
    }

    fn effects(text: &str) -> Effects {
        let reported = |name: &[u8]| name == b"timezone" || name == b"application_name";
        Effects::of_text(text.as_bytes(), ScanOptions::default(), reported)
    }

    #[test]
    fn what_a_block_resets_is_known_by_its_name() {
        let names = |names: &[&str]| {
            Resetting::Names(names.iter().map(|name| name.as_bytes().into()).collect())
        };
        let one = effects("do $$ begin set work_mem to '9MB'; reset work_mem; end $$");
        assert_eq!((one.resets, one.vague, one.spoils), (names(&["work_mem"]), false, false));
        assert_eq!(*one.names, [b"work_mem"[..].into()]);
        let custom = effects("do $$ begin reset my.a; reset application_name; end $$");
        assert_eq!(custom.resets, names(&["my.a", "application_name"]));
        assert!(custom.pins.contains(Part::CustomSetting) && !custom.vague);
        let more = effects("do $$ begin reset timezone; execute a; end $$");
        assert!(more.vague && more.resets == names(&["timezone"]));
        let all = effects("do $$ begin reset all; end $$");
        assert!(all.vague && all.resets == Resetting::All);
        let none = effects("do $$ begin set work_mem to '9MB'; end $$");
        assert!(none.vague && none.resets == Resetting::No);
    }
}
