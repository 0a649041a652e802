//! The span of a client's program to which a transaction belongs.
//!
//! # Source  `traceparent` of W3C Trace Context, level 1: `00-TRACE-SPAN-FLAGS`; sqlcommenter puts it into a
//!           comment, `/*traceparent='00-...'*/`
//! # Limits  of a text that streams, the part that has come first is searched

/// A span that was named to Hawser. Neither number is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceParent {
    /// The trace.
    pub trace: u128,
    /// The span within it.
    pub span: u64,
}

const NAME: &[u8] = b"traceparent='";
/// `00-TRACE-SPAN-01`
const BYTES: usize = 55;

impl TraceParent {
    /// The one that a text has in a comment.
    pub fn in_text(text: &[u8]) -> Option<Self> {
        let at = memchr::memmem::rfind(text, NAME)? + NAME.len();
        Self::read(text.get(at..at + BYTES)?)
    }

    /// The one that ends a name (whose 63 bytes have no room for its own name, too).
    pub fn ending(name: &[u8]) -> Option<Self> {
        Self::read(name.last_chunk::<BYTES>()?)
    }

    fn read(value: &[u8]) -> Option<Self> {
        let text = core::str::from_utf8(value).ok()?;
        let mut parts = text.split('-');
        let mut hex = |digits: usize| {
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            parts.next().filter(|part| part.len() == digits && part.bytes().all(is_digit))
        };
        let (version, trace, span, _flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let trace = u128::from_str_radix(trace, 16).ok()?;
        let span = u64::from_str_radix(span, 16).ok()?;
        (version != "ff" && trace != 0 && span != 0).then_some(Self { trace, span })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const FOUND: Option<TraceParent> = Some(TraceParent {
        trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
        span: 0xb7ad_6b71_6920_3331,
    });

    #[test]
    fn it_is_found_in_a_comment_and_at_the_end_of_a_name() {
        for text in [
            format!("select 1 /*db_driver='x',traceparent='{VALUE}',tracestate=''*/"),
            format!("/*traceparent='{VALUE}'*/ select 1"),
        ] {
            assert_eq!(TraceParent::in_text(text.as_bytes()), FOUND, "{text}");
        }
        for name in [VALUE.to_owned(), format!("web {VALUE}")] {
            assert_eq!(TraceParent::ending(name.as_bytes()), FOUND, "{name}");
        }
    }

    #[test]
    fn what_is_no_traceparent_is_none() {
        for (from, to) in [
            ("00-0", "ff-0"),
            ("0af7651916cd43dd8448eb211c80319c", "00000000000000000000000000000000"),
            ("b7ad6b7169203331", "0000000000000000"),
            ("0af7", "0AF7"),
            ("0af7", "+af7"),
            ("-b7", "--7"),
            ("-01", "-0"),
            ("0af7", "\u{e4}f7"),
        ] {
            let value = VALUE.replace(from, to);
            let text = format!("select 1 /*traceparent='{value}'*/");
            assert_eq!(TraceParent::in_text(text.as_bytes()), None, "{value}");
            assert_eq!(TraceParent::ending(value.as_bytes()), None, "{value}");
        }
        assert_eq!(TraceParent::in_text(b"select '/*traceparent=''00-"), None);
        assert_eq!(TraceParent::ending(b"psql"), None);
    }
}
