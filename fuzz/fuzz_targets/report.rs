//! What a server reports of a session: any bytes, and what is read has been there.
#![no_main]

use hawser_pooler::parts::report::text::{COVERED, Report};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let Ok(report) = Report::read(text) else { return };
    assert!(text.starts_with(b"1"));
    assert!(report.parts.minus(COVERED).is_empty());
    for pair in report.settings.windows(2) {
        assert!(pair[0].name < pair[1].name, "each setting once, in the order of the names");
    }
    for set in &report.settings {
        assert_eq!(report.setting(&set.name), Some(set));
        assert!(!set.name.is_empty() && !set.name.iter().any(u8::is_ascii_uppercase));
    }
    for name in &report.names {
        assert!(report.knows(name));
    }
});
