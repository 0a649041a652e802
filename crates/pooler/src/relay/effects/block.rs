//! What a DO block does, by its source.
//!
//! # Model   words show that a block may change settings, not which: its client would keep its
//!           server connection, without a question that could end that. A reset in it takes the
//!           server connection's start value, where the client's is meant. So a block is read in
//!           the same way as the source of a function.
//! # Limits  only a text that is nothing but `DO $$ ... $$`, in PL/pgSQL. Where the source does not
//!           show all settings that the block may change (EXECUTE of a variable, RESET ALL),
//!           nothing is known of those that the server does not report, and the words count.

use crate::relay::effects::{Effect, Effects};
use crate::session::scan::body::scan_body;
use crate::session::scan::{Findings, Verb};

/// Whether these are the words around a source in PL/pgSQL: `DO [LANGUAGE plpgsql]`, or what may
/// follow.
fn is_plpgsql(words: &[u8]) -> bool {
    let mut words = words.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut next = || words.next().map(<[u8]>::to_ascii_lowercase);
    match next().as_deref() {
        None => true,
        Some(b"language") => {
            matches!(next().as_deref(), Some(b"plpgsql" | b"'plpgsql'")) && next().is_none()
        }
        Some(_) => false,
    }
}

/// The source of `DO [LANGUAGE plpgsql] $tag$ source $tag$ [LANGUAGE plpgsql]`.
fn source(text: &[u8]) -> Option<&[u8]> {
    let (head, rest) = text.split_at(text.iter().position(|byte| *byte == b'$')?);
    let (verb, head) = head.trim_ascii_start().split_at_checked(b"do".len())?;
    if !verb.eq_ignore_ascii_case(b"do") || !is_plpgsql(head) {
        return None;
    }
    let tag = &rest[..rest.iter().skip(1).position(|byte| *byte == b'$')? + 2];
    let body = &rest[tag.len()..];
    let end = body.windows(tag.len()).position(|at| at == tag)?;
    let mut tail = &body[end + tag.len()..];
    while let Some(shorter) = tail.trim_ascii_end().strip_suffix(b";") {
        tail = shorter;
    }
    is_plpgsql(tail).then(|| &body[..end])
}

impl Effects {
    /// Adds what the source of the text does, if it is a DO block whose source shows that. The text
    /// has been scanned.
    pub(crate) fn and_of_block(
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
        // (The text itself is uncertain only because of what the block executes.)
        if block.may(Effect::SetsUnnamed) || found.unsure || found.truncated || found.dynamic {
            self.resets = block.resets;
            return self;
        }
        const OF_TEXT: [Effect; 5] = [
            Effect::MentionsAny,
            Effect::SetsBeside,
            Effect::Watches,
            Effect::ReadsSequences,
            Effect::Notifies,
        ];
        let of_block = block.does.without(&[Effect::SetsBeside, Effect::Watches]);
        Self {
            does: of_block.union(self.does.only(&OF_TEXT)).and(&[Effect::HasSeveral]),
            prepares: self.prepares,
            mentions: self.mentions,
            executes: self.executes,
            ..block
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::effects::Resetting;
    use crate::session::part::Part;
    use crate::session::scan::{ScanOptions, SchemaChange};

    #[test]
    fn the_source_of_a_block_stands_in_dollars() {
        for text in [
            "DO $$ x $$",
            " do $$ x $$ ; ",
            "Do\nLANGUAGE plpgsql $a$ x $a$",
            "do $a$ x $a$;",
            "do$$ x $$ Language plpgsql ; ;",
            "do language 'plpgsql' $$ x $$",
        ] {
            assert_eq!(source(text.as_bytes()), Some(&b" x "[..]), "{text}");
        }
        for text in [
            "do 'x'",
            "do $$ x $$ language plperl",
            "do $$ x $$ language plpgsql x",
            "do $$ x $$ language",
            "document $$ x $$",
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
        assert_eq!(
            (&one.resets, one.may(Effect::SetsUnnamed), one.may(Effect::Spoils)),
            (&names(&["work_mem"]), false, false)
        );
        assert_eq!(*one.names, [b"work_mem"[..].into()]);
        let custom = effects("do $$ begin reset my.a; reset application_name; end $$");
        assert_eq!(custom.resets, names(&["my.a", "application_name"]));
        assert!(custom.pins.contains(Part::CustomSetting) && !custom.may(Effect::SetsUnnamed));
        let more = effects("do $$ begin reset timezone; execute a; end $$");
        assert!(more.may(Effect::SetsUnnamed) && more.resets == names(&["timezone"]));
        let all = effects("do $$ begin reset all; end $$");
        assert!(all.may(Effect::SetsUnnamed) && all.resets == Resetting::ALL);
    }

    #[test]
    fn what_a_block_sets_is_known_by_its_name() {
        let sets = effects("do $$ begin set work_mem to '9MB'; end $$");
        assert_eq!((&sets.resets, sets.may(Effect::SetsUnnamed)), (&Resetting::No, false));
        assert_eq!(*sets.names, [b"work_mem"[..].into()]);
        let updates = effects("do $$ begin update t set a = 1; end $$");
        assert!(
            updates.pins.is_empty()
                && !updates.may(Effect::SetsUnnamed)
                && updates.names.is_empty()
        );
        let configures = effects("do $$ begin perform set_config('my.a', b, false); end $$");
        assert_eq!(*configures.names, [b"my.a"[..].into()]);
        for unknown in
            ["do $$ begin execute a; end $$", "do $$ begin perform set_config(a, b, false); end $$"]
        {
            assert!(effects(unknown).may(Effect::SetsUnnamed), "{unknown}");
        }
        for text in [
            "do $$ begin execute 'create table t (a int)'; end $$",
            "do $$ begin execute format('create table %I (a int)', a); end $$",
        ] {
            let made = effects(text);
            assert!(made.pins.is_empty() && made.schema == SchemaChange::All, "{text}");
        }
        for (text, part) in [
            ("do $$ begin prepare p as select 1; end $$", Part::SqlStatement),
            ("do $$ begin deallocate p; end $$", Part::SqlStatement),
            ("do $$ begin execute 'create temp table t (a int)'; end $$", Part::TemporaryObject),
            ("do $$ begin execute format('listen %I', a); end $$", Part::Listen),
        ] {
            assert!(effects(text).pins.contains(part), "{text}");
        }
        let locks =
            effects("do $$ begin set work_mem to '9MB'; perform pg_advisory_lock(1); end $$");
        assert!(locks.pins.contains(Part::AdvisoryLock) && !locks.may(Effect::SetsUnnamed));
    }
}
