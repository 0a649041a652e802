//! The scan of statement texts: any bytes, in any chunks, under any reading of strings.
#![no_main]

use hawser_pooler::session::scan::{ScanOptions, Scanner, names_temporary_schema, scan};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&[how, cut], text)) = input.split_first_chunk::<2>() else { return };
    let options =
        ScanOptions { standard_conforming_strings: how & 1 == 0, unsafe_encoding: how & 2 != 0 };
    let whole = scan(text, options);
    for statement in whole.statements() {
        assert!(text.get(statement.range.clone()).is_some(), "{statement:?} is not in the text");
    }
    let mut scanner = Scanner::new(options);
    for chunk in text.chunks(usize::from(cut).max(1)) {
        scanner.feed(chunk);
    }
    assert_eq!(scanner.finish(), whole, "the findings depend on where the chunks end");
    names_temporary_schema(text);
});
