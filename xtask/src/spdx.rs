//! Whether an SPDX licence expression can be met with a list of licences.
//!
//! Grammar (SPDX specification 2.3, annex D), WITH binding closest, then AND, then OR:
//! ```text
//! or   = and *( "OR" and )
//! and  = with *( "AND" with )
//! with = "(" or ")" | id [ "WITH" id ]
//! ```
//! A `/` between licences, as old manifests have it, is OR.

use std::collections::BTreeSet;

/// Licences that may be met, as ids or as `id WITH exception`.
pub(crate) type Allowed = BTreeSet<String>;

/// Whether `expression` leaves a choice that only needs `allowed` licences.
pub(crate) fn is_met(expression: &str, allowed: &Allowed) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut parser = Parser { words: spaced.split_whitespace().collect(), next: 0, allowed };
    let met = parser.either()?;
    match parser.peek() {
        None => Ok(met),
        Some(word) => Err(format!("`{word}` is not expected in `{expression}`")),
    }
}

struct Parser<'a> {
    words: Vec<&'a str>,
    next: usize,
    allowed: &'a Allowed,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).copied()
    }

    fn take(&mut self, word: &str) -> bool {
        let taken = self.peek() == Some(word);
        self.next += usize::from(taken);
        taken
    }

    fn either(&mut self) -> Result<bool, String> {
        let mut met = self.both()?;
        while self.take("OR") {
            met |= self.both()?;
        }
        Ok(met)
    }

    fn both(&mut self) -> Result<bool, String> {
        let mut met = self.one()?;
        while self.take("AND") {
            met &= self.one()?;
        }
        Ok(met)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let met = self.either()?;
            return if self.take(")") { Ok(met) } else { Err("a `)` is missing".into()) };
        }
        let id = self.id()?;
        if self.take("WITH") {
            // An exception only ever grants more, but a list is exact: it names what was judged.
            let exception = self.id()?;
            return Ok(self.allowed.contains(&format!("{id} WITH {exception}")));
        }
        Ok(self.allowed.contains(id))
    }

    fn id(&mut self) -> Result<&'a str, String> {
        match self.peek() {
            Some(word) if !["OR", "AND", "WITH", "(", ")"].contains(&word) => {
                self.next += 1;
                Ok(word)
            }
            Some(word) => Err(format!("`{word}` stands where a licence should")),
            None => Err("the expression ends early".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(expression: &str) -> Result<bool, String> {
        let list = ["MIT", "ISC", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];
        is_met(expression, &list.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn one_of_several_is_enough() {
        for expression in ["MIT", "GPL-3.0 OR MIT", "MIT/GPL-3.0", "(GPL-3.0 OR (LGPL-3.0 OR ISC))"]
        {
            assert_eq!(met(expression), Ok(true), "{expression}");
        }
    }

    #[test]
    fn all_of_several_are_needed() {
        assert_eq!(met("MIT AND ISC"), Ok(true));
        assert_eq!(met("MIT AND GPL-3.0"), Ok(false));
        assert_eq!(met("(MIT OR GPL-3.0) AND AGPL-3.0"), Ok(false));
    }

    #[test]
    fn and_binds_closer_than_or() {
        assert_eq!(met("MIT OR ISC AND GPL-3.0"), Ok(true));
        assert_eq!(met("GPL-3.0 AND ISC OR LGPL-3.0"), Ok(false));
    }

    #[test]
    fn an_exception_is_judged_with_its_licence() {
        assert_eq!(met("Apache-2.0 WITH LLVM-exception"), Ok(true));
        assert_eq!(met("MIT WITH LLVM-exception"), Ok(false));
        assert_eq!(met("GPL-3.0 WITH GCC-exception-3.1"), Ok(false));
    }

    #[test]
    fn nonsense_is_an_error_and_no_answer() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "OR MIT", "MIT WITH"] {
            assert!(met(expression).is_err(), "{expression}");
        }
    }
}
