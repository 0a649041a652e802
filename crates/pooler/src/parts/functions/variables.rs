//! Functions that keep something in variables of their language (SD and GD, %_SHARED): no text,
//! question or report shows that, so the configuration names them.
//!
//! # Model
//! A text that has one of their names as a word, wherever it stands, counts as a call: a string may
//! be concatenated with others and executed, and a word of a comment does no harm. The schema is
//! left out, because a `search_path` may replace it.

/// Names of functions, in lower case.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FunctionNames(Box<[Box<[u8]>]>);

/// Whether a byte is part of a word: what a name without double quotes may have.
pub(crate) fn is_of_a_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
}

impl FunctionNames {
    /// From names with or without a schema. `Err` is the one that is no name.
    pub fn read<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, &'a str> {
        let read = |name: &'a str| {
            let last = name.rsplit('.').next().unwrap_or(name).trim_matches('"');
            let is_one = !last.is_empty() && last.bytes().all(is_of_a_word);
            if is_one {
                Ok(last.to_ascii_lowercase().into_bytes().into_boxed_slice())
            } else {
                Err(name)
            }
        };
        Ok(Self(names.into_iter().map(read).collect::<Result<_, _>>()?))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a text has one of them as a word, or may have one in a spelling that hides it.
    pub fn stand_in(&self, text: &[u8]) -> bool {
        // U&"..." and E'...' spell characters by their numbers.
        let mut words = text.split(|byte| !is_of_a_word(*byte)).filter(|word| !word.is_empty());
        memchr::memchr(b'\\', text).is_some()
            || words.any(|word| self.0.iter().any(|name| name.eq_ignore_ascii_case(word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_in_any_case_with_or_without_a_schema() {
        let names = FunctionNames::read(["counts", "app.\"Keeps\""]).unwrap();
        for text in [
            "SELECT counts(1)",
            "select App.KEEPS ()",
            "select \"Keeps\"()",
            "DO $$ begin execute 'select counts(' || 1 || ')'; end $$",
            "select $1 -- counts",
            r#"select U&"count\0073"()"#,
        ] {
            assert!(names.stand_in(text.as_bytes()), "{text}");
        }
        for text in ["SELECT counts2(1)", "select count(s)", "", "select keeps$()"] {
            assert!(!names.stand_in(text.as_bytes()), "{text}");
        }
        assert!(FunctionNames::read([]).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_name_is_given_back() {
        for name in ["", "f()", "a.", "two words"] {
            assert_eq!(FunctionNames::read([name]), Err(name));
        }
    }
}
