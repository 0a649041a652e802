//! The form in which a server would show a value that a client gives.
//!
//! # Model   a server reports a setting only when it changes, and in a form of its own: `utf-8` is
//!           `UTF8`, `german` is `German, DMY`. Whether a backend already has what a client wants
//!           is therefore a question about canonical values.
//! # Invariants  `Known` is exactly what the server shows if it takes the value at all (it may
//!           still refuse, for example for lack of a conversion); in doubt the answer is `Ask`.
//! # Source  check functions in src/backend/commands/variable.c, parse_bool (utils/adt/bool.c),
//!           src/common/encnames.c; compared with PostgreSQL 15.

/// What is known about a value's canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Canonical {
    /// The server shows this.
    Known(Vec<u8>),
    /// The server refuses it.
    Invalid,
    /// Only the server can tell.
    Ask,
}

/// What a canonical value depends on beside the value itself.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The server's major version: 15.
    pub version: u32,
    /// The value that the setting had before, canonical: parts that the new value leaves out are
    /// kept from it.
    pub base: Option<&'a [u8]>,
}

/// Bytes that the server keeps of a name (NAMEDATALEN - 1).
const NAME_BYTES_MAX: usize = 63;

/// The Boolean settings whose form is known to be `on` or `off`.
const BOOLEANS: [&[u8]; 8] = [
    b"array_nulls",
    b"default_transaction_deferrable",
    b"default_transaction_read_only",
    b"escape_string_warning",
    b"quote_all_identifiers",
    b"row_security",
    b"standard_conforming_strings",
    b"transform_null_equals",
];

/// The form in which a server would show `value` of the setting `name` (in any case).
pub fn canonical(name: &[u8], value: &[u8], context: Context<'_>) -> Canonical {
    let name = name.to_ascii_lowercase();
    match &name[..] {
        b"application_name" => application_name(value, context.version),
        b"client_encoding" => match encoding(value) {
            Some(name) => Canonical::Known(name.into()),
            None => Canonical::Invalid,
        },
        b"datestyle" => date_style(value, context.base),
        b"intervalstyle" => {
            choice(value, &["postgres", "postgres_verbose", "sql_standard", "iso_8601"])
        }
        b"bytea_output" => choice(value, &["escape", "hex"]),
        b"default_transaction_isolation" => choice(
            value,
            &["serializable", "repeatable read", "read committed", "read uncommitted"],
        ),
        b"extra_float_digits" => integer(value, -15, 3),
        // The server checks that it is a list of names and keeps it as it came.
        b"search_path" if is_plain_list(value) => Canonical::Known(value.into()),
        _ if BOOLEANS.contains(&&name[..]) => match boolean(value) {
            Some(true) => Canonical::Known(b"on".into()),
            Some(false) => Canonical::Known(b"off".into()),
            None => Canonical::Invalid,
        },
        _ => Canonical::Ask,
    }
}

/// A Boolean as the server reads it: `on`, `off`, `1`, `0`, and any prefix that is clear of
/// `true`, `false`, `yes`, `no`, `on`, `off`.
pub(super) fn boolean(value: &[u8]) -> Option<bool> {
    let value = value.to_ascii_lowercase();
    let is = |word: &[u8], least: usize| value.len() >= least && word.starts_with(&value);
    if is(b"true", 1) || is(b"yes", 1) || is(b"on", 2) || value == b"1" {
        Some(true)
    } else if is(b"false", 1) || is(b"no", 1) || is(b"off", 2) || value == b"0" {
        Some(false)
    } else {
        None
    }
}

fn choice(value: &[u8], choices: &[&str]) -> Canonical {
    let found = choices.iter().find(|choice| choice.as_bytes().eq_ignore_ascii_case(value));
    found.map_or(Canonical::Invalid, |choice| Canonical::Known(choice.as_bytes().into()))
}

/// Decimal integers; the server also reads octal, hexadecimal and fractions: Ask.
fn integer(value: &[u8], least: i64, most: i64) -> Canonical {
    let Ok(text) = std::str::from_utf8(value) else { return Canonical::Invalid };
    let text = text.trim_ascii();
    let digits = text.trim_start_matches(['-', '+']);
    let decimal = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty();
    if !decimal || (digits.len() > 1 && digits.starts_with('0')) {
        return Canonical::Ask;
    }
    match text.parse::<i64>() {
        Ok(number) if (least..=most).contains(&number) => {
            Canonical::Known(number.to_string().into())
        }
        _ => Canonical::Invalid,
    }
}

/// Only printable ASCII is shown: up to 15 other bytes become `?`, from 16 on `\xNN`.
fn application_name(value: &[u8], version: u32) -> Canonical {
    if value.len() > NAME_BYTES_MAX && !value.is_ascii() {
        return Canonical::Ask; // it is cut first, between characters of the server's encoding
    }
    let mut shown = Vec::with_capacity(value.len());
    for &byte in &value[..value.len().min(NAME_BYTES_MAX)] {
        match byte {
            32..=126 => shown.push(byte),
            _ if version >= 16 => shown.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
            _ => shown.push(b'?'),
        }
    }
    Canonical::Known(shown)
}

/// `STYLE, ORDER`: a value names one or both, in any order; the other is kept from `base`.
fn date_style(value: &[u8], base: Option<&[u8]>) -> Canonical {
    let (mut style, mut order) = (None, None);
    let (mut german, mut conflict) = (false, false);
    let mut note = |slot: &mut Option<&'static str>, found: &'static str| {
        conflict |= slot.is_some_and(|before| before != found);
        *slot = Some(found);
    };
    if value.contains(&b'"') {
        return Canonical::Ask; // a quoted word is a word, but too rare
    }
    let blank = value.iter().all(u8::is_ascii_whitespace);
    for word in value.split(|&byte| byte == b',').filter(|_| !blank) {
        let word = word.trim_ascii().to_ascii_lowercase();
        match &word[..] {
            b"iso" => note(&mut style, "ISO"),
            b"sql" => note(&mut style, "SQL"),
            b"german" => {
                note(&mut style, "German");
                german = true;
            }
            b"ymd" => note(&mut order, "YMD"),
            b"dmy" => note(&mut order, "DMY"),
            b"mdy" | b"us" => note(&mut order, "MDY"),
            b"default" => return Canonical::Ask,
            word if word.starts_with(b"postgres") => note(&mut style, "Postgres"),
            word if word.starts_with(b"euro") => note(&mut order, "DMY"),
            word if word.starts_with(b"noneuro") => note(&mut order, "MDY"),
            _ => return Canonical::Invalid,
        }
    }
    if conflict {
        return Canonical::Invalid;
    }
    if german {
        order = order.or(Some("DMY"));
    }
    let base = base.and_then(|base| std::str::from_utf8(base).ok()?.split_once(", "));
    let style = style.or(base.map(|(style, _)| style));
    let order = order.or(base.map(|(_, order)| order));
    match (style, order) {
        (Some(style), Some(order)) => Canonical::Known(format!("{style}, {order}").into()),
        _ => Canonical::Ask,
    }
}

/// Whether it is a list of names that the server certainly takes: plain or quoted names between
/// commas. (Only the server knows whether non-ASCII bytes are valid in its encoding.)
fn is_plain_list(value: &[u8]) -> bool {
    if !value.is_ascii() {
        return false;
    }
    if value.iter().all(u8::is_ascii_whitespace) {
        return value.is_empty();
    }
    value.split(|&byte| byte == b',').all(|name| {
        let name = name.trim_ascii();
        let inner = name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\""));
        match inner {
            Some(inner) => !inner.is_empty() && !inner.contains(&b'"'),
            None => {
                !name.is_empty()
                    && name.iter().all(|&byte| byte.is_ascii_alphanumeric() || byte == b'_')
            }
        }
    })
}

/// The server's name of an encoding. Letters and digits count, in any case.
pub fn encoding(value: &[u8]) -> Option<&'static str> {
    if value.len() > NAME_BYTES_MAX {
        return None;
    }
    // Most clients write the name itself.
    if let Some((name, _)) = ENCODINGS.iter().find(|(name, _)| name.as_bytes() == value) {
        return Some(name);
    }
    let key: Vec<u8> = value
        .iter()
        .filter(|byte| byte.is_ascii_alphanumeric())
        .map(u8::to_ascii_lowercase)
        .collect();
    let found = ENCODINGS
        .iter()
        .find(|(_, spellings)| spellings.split(' ').any(|spelling| spelling.as_bytes() == key));
    found.map(|(name, _)| *name)
}

/// Whether characters of this encoding (the server's name) contain bytes that look like ASCII. Then
/// a scan of statement texts needs [`super::scan::ScanOptions::unsafe_encoding`].
pub fn is_unsafe_encoding(name: &[u8]) -> bool {
    const UNSAFE: [&[u8]; 7] =
        [b"BIG5", b"GB18030", b"GBK", b"JOHAB", b"SHIFT_JIS_2004", b"SJIS", b"UHC"];
    UNSAFE.contains(&name)
}

/// The server's name of each encoding that a client may ask for, and how it may be spelt.
const ENCODINGS: [(&str, &str); 42] = [
    ("BIG5", "big5 win950 windows950"),
    ("EUC_CN", "euccn"),
    ("EUC_JIS_2004", "eucjis2004"),
    ("EUC_JP", "eucjp"),
    ("EUC_KR", "euckr"),
    ("EUC_TW", "euctw"),
    ("GB18030", "gb18030"),
    ("GBK", "gbk win936 windows936"),
    ("ISO_8859_5", "iso88595"),
    ("ISO_8859_6", "iso88596"),
    ("ISO_8859_7", "iso88597"),
    ("ISO_8859_8", "iso88598"),
    ("JOHAB", "johab"),
    ("KOI8R", "koi8 koi8r"),
    ("KOI8U", "koi8u"),
    ("LATIN1", "latin1 iso88591"),
    ("LATIN10", "latin10 iso885916"),
    ("LATIN2", "latin2 iso88592"),
    ("LATIN3", "latin3 iso88593"),
    ("LATIN4", "latin4 iso88594"),
    ("LATIN5", "latin5 iso88599"),
    ("LATIN6", "latin6 iso885910"),
    ("LATIN7", "latin7 iso885913"),
    ("LATIN8", "latin8 iso885914"),
    ("LATIN9", "latin9 iso885915"),
    ("MULE_INTERNAL", "muleinternal"),
    ("SHIFT_JIS_2004", "shiftjis2004"),
    ("SJIS", "sjis shiftjis mskanji win932 windows932"),
    ("SQL_ASCII", "sqlascii"),
    ("UHC", "uhc win949 windows949"),
    ("UTF8", "utf8 unicode"),
    ("WIN1250", "win1250 windows1250"),
    ("WIN1251", "win1251 windows1251 win"),
    ("WIN1252", "win1252 windows1252"),
    ("WIN1253", "win1253 windows1253"),
    ("WIN1254", "win1254 windows1254"),
    ("WIN1255", "win1255 windows1255"),
    ("WIN1256", "win1256 windows1256"),
    ("WIN1257", "win1257 windows1257"),
    ("WIN1258", "win1258 windows1258 abc tcvn tcvn5712 vscii"),
    ("WIN866", "win866 windows866 alt"),
    ("WIN874", "win874 windows874"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, value: &str, base: &str, version: u32) -> String {
        let context = Context { version, base: Some(base.as_bytes()) };
        match canonical(name.as_bytes(), value.as_bytes(), context) {
            Canonical::Known(value) => String::from_utf8(value).unwrap(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn date_styles_merge_with_what_was() {
        for (value, base, expected) in [
            ("iso", "German, DMY", "ISO, DMY"),
            ("sql, dmy", "ISO, MDY", "SQL, DMY"),
            ("ymd,ISO", "SQL, DMY", "ISO, YMD"),
            ("european", "ISO, MDY", "ISO, DMY"),
            ("us", "ISO, DMY", "ISO, MDY"),
            ("nonEuropeanxx", "ISO, DMY", "ISO, MDY"),
            ("postgresxxx", "ISO, MDY", "Postgres, MDY"),
            ("German", "ISO, MDY", "German, DMY"),
            ("german, mdy", "ISO, YMD", "German, MDY"),
            ("mdy,german", "ISO, YMD", "German, MDY"),
            ("iso, iso, ymd", "SQL, DMY", "ISO, YMD"),
            ("", "ISO, YMD", "ISO, YMD"),
            ("iso,sql", "ISO, MDY", "Invalid"),
            ("ymd,dmy", "ISO, MDY", "Invalid"),
            ("isoooo", "ISO, MDY", "Invalid"),
            ("germanx", "ISO, MDY", "Invalid"),
            ("iso,", "ISO, MDY", "Invalid"),
            ("iso mdy", "ISO, MDY", "Invalid"),
            ("default", "ISO, MDY", "Ask"),
            ("\"iso\"", "ISO, MDY", "Ask"),
            ("iso", "", "Ask"),
            ("iso, mdy", "", "ISO, MDY"),
        ] {
            assert_eq!(shown("DateStyle", value, base, 15), expected, "{value} on {base}");
        }
    }

    #[test]
    fn encodings_have_one_name() {
        for (value, expected) in [
            ("utf-8", "UTF8"),
            ("u-t-f 8", "UTF8"),
            ("Unicode", "UTF8"),
            ("  iso_8859-5", "ISO_8859_5"),
            ("latin1", "LATIN1"),
            ("ISO 8859-1", "LATIN1"),
            ("win", "WIN1251"),
            ("mskanji", "SJIS"),
            ("sql_ascii", "SQL_ASCII"),
            ("utf16", "Invalid"),
            ("", "Invalid"),
        ] {
            assert_eq!(shown("client_encoding", value, "", 15), expected, "{value}");
        }
        for (name, spellings) in ENCODINGS {
            assert_eq!(encoding(name.as_bytes()), Some(name));
            for spelling in spellings.split(' ') {
                assert_eq!(encoding(spelling.to_ascii_uppercase().as_bytes()), Some(name));
            }
        }
        assert!(is_unsafe_encoding(b"SJIS") && !is_unsafe_encoding(b"EUC_JP"));
    }

    #[test]
    fn application_names_are_cleaned_as_the_version_does() {
        assert_eq!(shown("application_name", "a\tb\u{e9}", "", 15), "a?b??");
        assert_eq!(shown("application_name", "a\tb\u{e9}", "", 16), "a\\x09b\\xc3\\xa9");
        assert_eq!(shown("application_name", &"a".repeat(70), "", 15), "a".repeat(63));
        assert_eq!(shown("application_name", &"\u{e9}".repeat(40), "", 15), "Ask");
    }

    #[test]
    fn booleans_choices_and_numbers_have_one_form() {
        for (name, value, expected) in [
            ("standard_conforming_strings", "TrU", "on"),
            ("standard_conforming_strings", "Y", "on"),
            ("standard_conforming_strings", "of", "off"),
            ("standard_conforming_strings", "0", "off"),
            ("standard_conforming_strings", "o", "Invalid"),
            ("standard_conforming_strings", " on", "Invalid"),
            ("standard_conforming_strings", "", "Invalid"),
            ("standard_conforming_strings", "once", "Invalid"),
            ("IntervalStyle", "ISO_8601", "iso_8601"),
            ("IntervalStyle", "iso", "Invalid"),
            ("extra_float_digits", " 3 ", "3"),
            ("extra_float_digits", "-15", "-15"),
            ("extra_float_digits", "+1", "1"),
            ("extra_float_digits", "-16", "Invalid"),
            ("extra_float_digits", "4", "Invalid"),
            ("extra_float_digits", "0x3", "Ask"),
            ("extra_float_digits", "010", "Ask"),
            ("extra_float_digits", "1e0", "Ask"),
            ("search_path", "\"$user\", public", "\"$user\", public"),
            ("search_path", "A,b", "A,b"),
            ("search_path", "", ""),
            ("search_path", "a b", "Ask"),
            ("search_path", "a,,b", "Ask"),
            ("TimeZone", "UTC", "Ask"),
            ("my.user", "x", "Ask"),
        ] {
            assert_eq!(shown(name, value, "", 15), expected, "{name} = {value}");
        }
    }
}
