//! Lists of names as the server writes them (`search_path`).

use crate::session::settings::quoting::write_value;

/// Words that `quote_identifier` (ruleutils.c) puts in quotes: all key words but the unreserved, of
/// PostgreSQL 15 and 18 (kwlist.h). The set differs between versions, so a list that has one of
/// these as a name is left to `set_config()`.
#[rustfmt::skip]
const KEY_WORDS: [&str; 164] = [
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric",
    "authorization", "between", "bigint", "binary", "bit", "boolean", "both", "case", "cast",
    "char", "character", "check", "coalesce", "collate", "collation", "column", "concurrently",
    "constraint", "create", "cross", "current_catalog", "current_date", "current_role",
    "current_schema", "current_time", "current_timestamp", "current_user", "dec", "decimal",
    "default", "deferrable", "desc", "distinct", "do", "else", "end", "except", "exists",
    "extract", "false", "fetch", "float", "for", "foreign", "freeze", "from", "full", "grant",
    "greatest", "group", "grouping", "having", "ilike", "in", "initially", "inner", "inout",
    "int", "integer", "intersect", "interval", "into", "is", "isnull", "join", "json",
    "json_array", "json_arrayagg", "json_exists", "json_object", "json_objectagg", "json_query",
    "json_scalar", "json_serialize", "json_table", "json_value", "lateral", "leading", "least",
    "left", "like", "limit", "localtime", "localtimestamp", "merge_action", "national",
    "natural", "nchar", "none", "normalize", "not", "notnull", "null", "nullif", "numeric",
    "offset", "on", "only", "or", "order", "out", "outer", "overlaps", "overlay", "placing",
    "position", "precision", "primary", "real", "references", "returning", "right", "row",
    "select", "session_user", "setof", "similar", "smallint", "some", "substring", "symmetric",
    "system_user", "table", "tablesample", "then", "time", "timestamp", "to", "trailing",
    "treat", "trim", "true", "union", "unique", "user", "using", "values", "varchar",
    "variadic", "verbose", "when", "where", "window", "with", "xmlattributes", "xmlconcat",
    "xmlelement", "xmlexists", "xmlforest", "xmlnamespaces", "xmlparse", "xmlpi", "xmlroot",
    "xmlserialize", "xmltable",
];

/// A longer name is cut off by SET (`NAMEDATALEN`).
const NAME_BYTES_MAX: usize = 63;

/// Whether the server shows a name without quotes, unless it is a key word.
fn is_plain(name: &[u8]) -> bool {
    let inner = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    name.first().is_some_and(|first| inner(first) && !first.is_ascii_digit())
        && name.iter().all(inner)
}

/// The next name of a list, as it stands between double quotes, and what is after it.
fn next(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = match list.strip_prefix(b"\"") {
        None => {
            let end = list.iter().position(|byte| *byte == b',').unwrap_or(list.len());
            let (name, rest) = list.split_at(end);
            (is_plain(name).then_some(name)?, rest)
        }
        Some(quoted) => {
            let mut end = 0;
            loop {
                end += quoted.get(end..)?.iter().position(|byte| *byte == b'"')?;
                if quoted.get(end + 1) != Some(&b'"') {
                    break;
                }
                end += 2;
            }
            let (name, rest) = quoted.split_at(end);
            (!is_plain(name)).then_some((name, rest.get(1..)?))?
        }
    };
    let known = std::str::from_utf8(name).is_ok_and(|name| KEY_WORDS.binary_search(&name).is_ok());
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX && !known).then_some((name, rest))
}

/// A name without the quotes that are doubled within quotes.
fn unquoted(name: &[u8]) -> Vec<u8> {
    let mut doubled = false;
    let once = |byte: &u8| {
        doubled = *byte == b'"' && !doubled;
        doubled || *byte != b'"'
    };
    name.iter().copied().filter(once).collect()
}

/// Writes the names of a list, each in double quotes, or as a literal where it is not ASCII: so it
/// does not matter which names are key words of a later version, or in which `client_encoding` it
/// is read. `None`, and a part of them, if the list is not written exactly as the server would
/// write them after a SET (`flatten_set_variable_args`, guc_funcs.c), or may not be: where the
/// spaces differ, or quotes are missing.
pub(super) fn write_names(list: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut rest = list;
    loop {
        let (name, after) = next(rest)?;
        if name.is_ascii() {
            out.push(b'"');
            out.extend_from_slice(name);
            out.push(b'"');
        } else {
            // As a literal it is one name as well, and quoted like any other.
            write_value(&unquoted(name), out);
        }
        if after.is_empty() {
            return Some(());
        }
        rest = after.strip_prefix(b", ")?;
        out.extend_from_slice(b", ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(list: &str) -> Option<String> {
        let mut out = Vec::new();
        write_names(list.as_bytes(), &mut out)?;
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn what_the_server_writes_is_read() {
        for (list, expected) in [
            ("public", &["public"][..]),
            (r#""$user", public"#, &["$user", "public"]),
            (
                r#"a_1, "A", _b, "1a", "it's", "a,b", "say ""x""""#,
                &["a_1", "A", "_b", "1a", "it's", "a,b", r#"say ""x"""#],
            ),
        ] {
            let quoted: Vec<String> = expected.iter().map(|name| format!("\"{name}\"")).collect();
            assert_eq!(written(list), Some(quoted.join(", ")), "{list}");
        }
    }

    #[test]
    fn what_is_not_ascii_is_written_in_ascii() {
        let list = r#"a, "größe", "é'\""x""""#;
        let expected = r#""a", E'gr\xc3\xb6\xc3\x9fe', E'\xc3\xa9''\\"x"'"#;
        assert_eq!(written(list).as_deref(), Some(expected));
    }

    #[test]
    fn what_it_would_write_otherwise_is_not() {
        let (long, wide) = ("x".repeat(64), format!("\"{}\"", "ß".repeat(32)));
        for list in [
            "",
            " a",
            "a ",
            "a,b",
            "a,  b",
            "a, ",
            ", a",
            "A",
            r#""a""#,
            r#""""#,
            "user",
            r#""user""#,
            r#""a"#,
            r#""A"b"#,
            r#""A","B""#,
            "1a",
            "a-b",
            "größe",
            "a.b",
            &long,
            &wide,
        ] {
            assert_eq!(written(list), None, "{list}");
        }
    }

    #[test]
    fn key_words_are_in_order() {
        assert!(KEY_WORDS.is_sorted());
    }
}
