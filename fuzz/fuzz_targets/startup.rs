//! What comes before a session: startup parameters with their `options`, and any framing.
#![no_main]

use hawser_pooler::session::options;
use hawser_pooler::wire::error::field;
use hawser_pooler::wire::frame::{Framed, header, take_string};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Framed::Header(header) = header(input) {
        assert!(header.total() > header.body);
    }
    for tag in [b'C', b'M'] {
        let _ = field(input, tag);
    }
    if let Err(error) = options::parse_options(input) {
        assert_eq!(error.sqlstate().len(), 5);
        assert!(!error.to_string().is_empty());
    }
    // As a startup packet has them: name, NUL, value, NUL ...
    let mut pairs = Vec::new();
    let mut rest = input;
    while let Some((name, after)) = take_string(rest) {
        let Some((value, after)) = take_string(after) else { break };
        pairs.push((name, value));
        rest = after;
    }
    if let Ok(startup) = options::parse(pairs) {
        assert!(!startup.user.is_empty() && !startup.database.is_empty());
    }
});
