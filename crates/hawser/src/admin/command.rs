//! What an operator types -> a command.
//!
//! # Model       text is cut into tokens, tokens into statements at `;`, and each statement read on
//!               its own. Keywords in any case; comments and white space anywhere
//! # Why not     PgBouncer's regular expressions: they refuse comments, several statements, and
//!               values with a dot or a slash
//! # Limits      names without quotes keep their case, as in PgBouncer and unlike SQL

use std::time::Duration;

use crate::config::duration;
use crate::queries::order::Order;

/// Longer text is refused: no command needs it.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// Statements in one text.
const STATEMENTS_MAX: usize = 100;

/// What SHOW shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Topic {
    /// Sockets on which something is in a buffer.
    ActiveSockets,
    /// Clients.
    Clients,
    /// Settings.
    Config,
    /// `[[database]]` entries, and what uses them.
    Databases,
    /// Names of servers.
    DnsHosts,
    /// DNS zones: none are kept.
    DnsZones,
    /// Descriptors.
    Fds,
    /// What can be typed.
    Help,
    /// Servers of databases, and how they stand.
    Hosts,
    /// Limits that several poolers share.
    Limits,
    /// Counts of everything.
    Lists,
    /// Memory.
    Mem,
    /// Peers: there are none.
    Peers,
    /// Pools of peers: there are none.
    PeerPools,
    /// Clients that keep their backend, and why.
    Pins,
    /// Pools.
    Pools,
    /// Statements, in this order.
    Queries(Order),
    /// Server connections.
    Servers,
    /// Clients and server connections.
    Sockets,
    /// Whether it is paused.
    State,
    /// Rules.
    Rules,
    /// Counters and averages by database.
    Stats,
    /// Averages by database.
    StatsAverages,
    /// Counters by database.
    StatsTotals,
    /// Counters and averages of everything.
    Totals,
    /// Users.
    Users,
    /// Version.
    Version,
}

impl Topic {
    /// Every topic with its word, by word.
    pub const ALL: [(&'static str, Self); 27] = [
        ("ACTIVE_SOCKETS", Self::ActiveSockets),
        ("CLIENTS", Self::Clients),
        ("CONFIG", Self::Config),
        ("DATABASES", Self::Databases),
        ("DNS_HOSTS", Self::DnsHosts),
        ("DNS_ZONES", Self::DnsZones),
        ("FDS", Self::Fds),
        ("HELP", Self::Help),
        ("HOSTS", Self::Hosts),
        ("LIMITS", Self::Limits),
        ("LISTS", Self::Lists),
        ("MEM", Self::Mem),
        ("PEERS", Self::Peers),
        ("PEER_POOLS", Self::PeerPools),
        ("PINS", Self::Pins),
        ("POOLS", Self::Pools),
        ("QUERIES", Self::Queries(Order::Time)),
        ("RULES", Self::Rules),
        ("SERVERS", Self::Servers),
        ("SOCKETS", Self::Sockets),
        ("STATE", Self::State),
        ("STATS", Self::Stats),
        ("STATS_AVERAGES", Self::StatsAverages),
        ("STATS_TOTALS", Self::StatsTotals),
        ("TOTALS", Self::Totals),
        ("USERS", Self::Users),
        ("VERSION", Self::Version),
    ];

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, topic)| *topic)
    }
}

/// Settings of a PostgreSQL session that drivers ask for or set without need.
pub const SESSION_SETTINGS: [(&str, &str); 13] = [
    ("client_encoding", "UTF-8"),
    ("default_transaction_isolation", "read committed"),
    ("standard_conforming_strings", "on"),
    ("datestyle", "ISO"),
    ("timezone", "GMT"),
    ("application_name", ""),
    ("client_min_messages", "notice"),
    ("extra_float_digits", "1"),
    ("search_path", ""),
    ("server_encoding", "UTF8"),
    ("server_version", concat!(env!("CARGO_PKG_VERSION"), "/hawser")),
    ("statement_timeout", "0"),
    ("transaction_isolation", "read committed"),
];

/// What a transaction statement does. The console has no transactions; drivers open them unasked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transaction {
    /// BEGIN.
    Begin,
    /// COMMIT.
    Commit,
    /// ROLLBACK.
    Rollback,
}

/// How SHUTDOWN was asked for.
/// How the process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// At once.
    Immediate,
    /// When no client has a backend any more; clients that wait are disconnected. SIGTERM does this
    /// too, for at most `shutdown_timeout`.
    WaitForServers,
    /// When all clients have left.
    WaitForClients,
}

/// A statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// SHOW of the pooler.
    Show(Topic),
    /// SHOW ... EXTENDED: with all columns, on whatever database.
    ShowExtended(Topic),
    /// SHOW of a setting that a PostgreSQL session would have: its name and value.
    ShowSession(&'static str, &'static str),
    /// SET of a setting of the pooler.
    Set {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// SET of a setting that a PostgreSQL session would have.
    SetSession,
    /// BEGIN, COMMIT, ROLLBACK.
    Transaction(Transaction),
    /// DISCARD ALL, DEALLOCATE ALL, RESET ALL: the tag to answer with.
    Clean(&'static str),
    /// PAUSE of one database or all.
    Pause(Option<String>),
    /// RESUME of one database or all.
    Resume(Option<String>),
    /// SWITCHOVER of a database.
    Switchover(String),
    /// DISABLE of a database.
    Disable(String),
    /// ENABLE of a database.
    Enable(String),
    /// RECONNECT of one database or all.
    Reconnect(Option<String>),
    /// KILL of one database or all.
    Kill(Option<String>),
    /// CLOSE IDLE of one database or all.
    CloseIdle(Option<String>),
    /// KILL_CLIENT by id.
    KillClient(String),
    /// WAIT_CLOSE of one database or all.
    WaitClose(Option<String>),
    /// RULE ADD.
    RuleAdd {
        /// Its name.
        name: String,
        /// What it matches and does: words with their values.
        words: Vec<(String, String)>,
        /// How long it is in force; `None`: until the next reload.
        lasts: Option<Duration>,
        /// It may match everything, or nothing.
        force: bool,
    },
    /// RULE DROP by name.
    RuleDrop(String),
    /// RELOAD.
    Reload,
    /// SUSPEND.
    Suspend,
    /// SHUTDOWN.
    Shutdown(Shutdown),
}

/// Why a text is no command.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandError {
    /// Longer than [`TEXT_BYTES_MAX`], or more statements than a person types.
    #[error("the command is too long")]
    TooLong,
    /// A quote or comment that does not end.
    #[error("a {0} in the command does not end")]
    Unterminated(&'static str),
    /// The first word is no command. The start of the statement.
    // PgBouncer's words, which scripts look for.
    #[error("invalid command '{0}', use SHOW HELP;")]
    Unknown(String),
    /// SHOW, or SELECT, of something that there is not. The start of the statement.
    #[error("invalid command '{0}', use SHOW HELP;")]
    UnknownTopic(String),
    /// A command with too many, too few or wrong words after it: how it is written.
    #[error("bad arguments of {}", .0.split(' ').next().unwrap_or(.0))]
    Form(&'static str),
    /// A rule of which a word is wrong.
    #[error("{0}")]
    Rule(String),
}

impl CommandError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            Self::TooLong => "Send one command at a time.".to_owned(),
            Self::Unterminated(_) | Self::Unknown(_) => {
                "SHOW HELP lists what can be typed.".to_owned()
            }
            Self::UnknownTopic(_) => {
                let topics: Vec<_> = Topic::ALL.iter().map(|(name, _)| *name).collect();
                format!("SHOW knows {}.", topics.join(", "))
            }
            Self::Form(form) => format!("Write: {form}"),
            Self::Rule(_) => format!("Write: {RULE}"),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// Without quotes.
    Word(String),
    /// In double quotes.
    Name(String),
    /// In single quotes.
    Literal(String),
    Equals,
    Semicolon,
}

/// Reads all statements of a text; empty ones are left out.
///
/// # Errors
/// The first invalid statement. The statements before it are not returned: a typing error must not
/// leave half a script done.
pub fn parse(text: &str) -> Result<Vec<Command>, CommandError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(CommandError::TooLong);
    }
    let tokens = tokens(text)?;
    let statements: Vec<_> = tokens
        .split(|token| *token == Token::Semicolon)
        .filter(|statement| !statement.is_empty())
        .collect();
    if statements.len() > STATEMENTS_MAX {
        return Err(CommandError::TooLong);
    }
    statements.into_iter().map(statement).collect()
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte >= 0x80 || b"_.-/:*+@%$,[]{}<>()!?&|~^#\\".contains(&byte)
}

fn tokens(text: &str) -> Result<Vec<Token>, CommandError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        if byte.is_ascii_whitespace() || byte == 0x0b {
            at += 1;
        } else if rest.starts_with(b"--") {
            at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            at += comment(rest)?;
        } else if byte == b'"' || byte == b'\'' {
            let (content, length) = quoted(&text[at..], byte)?;
            tokens.push(if byte == b'"' { Token::Name(content) } else { Token::Literal(content) });
            at += length;
        } else if byte == b';' || byte == b'=' {
            tokens.push(if byte == b';' { Token::Semicolon } else { Token::Equals });
            at += 1;
        } else if is_word_byte(byte) {
            let mut end = at;
            while bytes.get(end).copied().is_some_and(is_word_byte)
                && !bytes[end..].starts_with(b"--")
                && !bytes[end..].starts_with(b"/*")
            {
                end += 1;
            }
            // Bytes above 0x7f are all taken or all left: `end` is on a character's edge.
            tokens.push(Token::Word(text[at..end].to_owned()));
            at = end;
        } else {
            return Err(CommandError::Unknown(text[at..].chars().take(1).collect()));
        }
    }
    Ok(tokens)
}

/// Length of a comment; comments nest, as in PostgreSQL.
fn comment(bytes: &[u8]) -> Result<usize, CommandError> {
    let mut depth = 0usize;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Ok(at);
            }
        } else {
            at += 1;
        }
    }
    Err(CommandError::Unterminated("comment"))
}

/// What stands between quotes, with doubled quotes made single; and the length with quotes.
fn quoted(text: &str, quote: u8) -> Result<(String, usize), CommandError> {
    let quote = char::from(quote);
    let mut content = String::new();
    let mut rest = &text[1..];
    loop {
        let end = rest.find(quote).ok_or(CommandError::Unterminated("quoted string"))?;
        content.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        if !rest.starts_with(quote) {
            return Ok((content, text.len() - rest.len()));
        }
        content.push(quote);
        rest = &rest[1..];
    }
}

const RULE: &str = "RULE ADD name [USER name] [DATABASE name] [APPLICATION_NAME name] [NETWORK net] \
    [KIND read|write|ddl] [DIGEST digest] [TEXT 'regular expression'] [REFUSE 'message' [SQLSTATE code]] \
    [MAX_RUNNING n] [MAX_TIME time] [LOG n] [AUDIT] [PRIORITY low|high] [FOR 'time'] [FORCE], or RULE DROP name, or RULE SHOW";

fn rule(arguments: &[Token]) -> Result<Command, CommandError> {
    let form = || CommandError::Form(RULE);
    let (verb, rest) = match arguments {
        [Token::Word(verb), rest @ ..] => (verb.to_ascii_uppercase(), rest),
        _ => return Err(form()),
    };
    match (verb.as_str(), rest) {
        ("SHOW", []) => Ok(Command::Show(Topic::Rules)),
        ("DROP", [Token::Word(name) | Token::Name(name)]) => Ok(Command::RuleDrop(name.clone())),
        ("ADD", [Token::Word(name) | Token::Name(name), words @ ..]) => rule_add(name, words),
        _ => Err(form()),
    }
}

fn rule_add(name: &str, mut rest: &[Token]) -> Result<Command, CommandError> {
    let (mut words, mut lasts, mut force) = (Vec::new(), None, false);
    while let [Token::Word(word), after @ ..] = rest {
        let word = word.to_ascii_lowercase();
        if word == "force" {
            (force, rest) = (true, after);
            continue;
        }
        if word == "audit" {
            words.push((word, "true".to_owned()));
            rest = after;
            continue;
        }
        let after = after.strip_prefix(&[Token::Equals]).unwrap_or(after);
        let [Token::Word(value) | Token::Name(value) | Token::Literal(value), after @ ..] = after
        else {
            let place = words.len() + 1;
            let word = word.to_uppercase();
            return Err(CommandError::Rule(format!(
                "{word}, word {place} of the rule, has no value"
            )));
        };
        if word == "for" {
            let time = duration(value).map_err(|why| CommandError::Rule(format!("FOR: {why}")))?;
            lasts = Some(time);
        } else {
            words.push((word, value.clone()));
        }
        rest = after;
    }
    match rest {
        [] => Ok(Command::RuleAdd { name: name.to_owned(), words, lasts, force }),
        other => Err(CommandError::Rule(format!("`{}` is no word of a rule", spelled(other)))),
    }
}

const SHOW_QUERIES: &str =
    "SHOW QUERIES [ORDER BY time | calls | errors | rows | bytes | wait | mean | p99 | last_seen]";
const CLOSE_IDLE: &str = "CLOSE IDLE [database]";

fn statement(tokens: &[Token]) -> Result<Command, CommandError> {
    let [Token::Word(first), arguments @ ..] = tokens else {
        return Err(CommandError::Unknown(spelled(tokens)));
    };
    let optional = |form, make: fn(Option<String>) -> Command| match arguments {
        [] => Ok(make(None)),
        [Token::Word(name) | Token::Name(name)] => Ok(make(Some(name.clone()))),
        _ => Err(CommandError::Form(form)),
    };
    let required = |form, make: fn(String) -> Command| match arguments {
        [Token::Word(name) | Token::Name(name)] => Ok(make(name.clone())),
        _ => Err(CommandError::Form(form)),
    };
    let alone = |form, command| match arguments {
        [] => Ok(command),
        _ => Err(CommandError::Form(form)),
    };
    match first.to_ascii_uppercase().as_str() {
        // SELECT is PgBouncer's other word for SHOW; the console runs no SQL.
        "SHOW" | "SELECT" => show(arguments, || spelled(tokens)),
        "SET" => set(arguments),
        "PAUSE" => optional("PAUSE [database]", Command::Pause),
        "RESUME" => optional("RESUME [database]", Command::Resume),
        "RECONNECT" => optional("RECONNECT [database]", Command::Reconnect),
        "KILL" => optional("KILL [database]", Command::Kill),
        "CLOSE" => match arguments {
            [Token::Word(idle), rest @ ..] if idle.eq_ignore_ascii_case("idle") => match rest {
                [] => Ok(Command::CloseIdle(None)),
                [Token::Word(name) | Token::Name(name)] => {
                    Ok(Command::CloseIdle(Some(name.clone())))
                }
                _ => Err(CommandError::Form(CLOSE_IDLE)),
            },
            _ => Err(CommandError::Form(CLOSE_IDLE)),
        },
        "WAIT_CLOSE" => optional("WAIT_CLOSE [database]", Command::WaitClose),
        "SWITCHOVER" => required("SWITCHOVER database", Command::Switchover),
        "DISABLE" => required("DISABLE database", Command::Disable),
        "ENABLE" => required("ENABLE database", Command::Enable),
        "KILL_CLIENT" => match arguments {
            [Token::Word(id) | Token::Name(id) | Token::Literal(id)] => {
                Ok(Command::KillClient(id.clone()))
            }
            _ => Err(CommandError::Form("KILL_CLIENT id, with an id of SHOW CLIENTS")),
        },
        "RULE" => rule(arguments),
        "RELOAD" => alone("RELOAD", Command::Reload),
        "SUSPEND" => alone("SUSPEND", Command::Suspend),
        "SHUTDOWN" => shutdown(arguments),
        "BEGIN" | "START" => Ok(Command::Transaction(Transaction::Begin)),
        "COMMIT" | "END" => Ok(Command::Transaction(Transaction::Commit)),
        "ROLLBACK" | "ABORT" => Ok(Command::Transaction(Transaction::Rollback)),
        "DISCARD" => Ok(Command::Clean("DISCARD ALL")),
        "DEALLOCATE" => Ok(Command::Clean("DEALLOCATE ALL")),
        "RESET" => Ok(Command::Clean("RESET")),
        _ => Err(CommandError::Unknown(spelled(tokens))),
    }
}

/// The start of a statement, for an error.
fn spelled(tokens: &[Token]) -> String {
    let words = tokens.iter().take(4).map(|token| match token {
        Token::Word(word) | Token::Name(word) => word.as_str(),
        Token::Literal(_) => "'...'",
        Token::Equals => "=",
        Token::Semicolon => ";",
    });
    words.collect::<Vec<_>>().join(" ").chars().take(64).collect()
}

fn show(arguments: &[Token], spelled: impl Fn() -> String) -> Result<Command, CommandError> {
    if let [Token::Word(topic) | Token::Name(topic), Token::Word(extended)] = arguments
        && extended.eq_ignore_ascii_case("extended")
        && let Some(topic) = Topic::from_word(topic)
    {
        return Ok(Command::ShowExtended(topic));
    }
    if let [Token::Word(topic), Token::Word(order), Token::Word(by), Token::Word(what)] = arguments
        && let Some(Topic::Queries(_)) = Topic::from_word(topic)
        && order.eq_ignore_ascii_case("order")
        && by.eq_ignore_ascii_case("by")
    {
        let order = Order::from_word(what).ok_or(CommandError::Form(SHOW_QUERIES))?;
        return Ok(Command::Show(Topic::Queries(order)));
    }
    let words = match arguments {
        [Token::Word(word) | Token::Name(word)] => word.as_str(),
        // As pgjdbc asks for the isolation level.
        [Token::Word(a), Token::Word(b), Token::Word(c)]
            if [a, b, c]
                .iter()
                .zip(["transaction", "isolation", "level"])
                .all(|(word, keyword)| word.eq_ignore_ascii_case(keyword)) =>
        {
            "transaction_isolation"
        }
        [] => return Err(CommandError::Form("SHOW what, see SHOW HELP")),
        _ => return Err(CommandError::UnknownTopic(spelled())),
    };
    if let Some(topic) = Topic::from_word(words) {
        return Ok(Command::Show(topic));
    }
    match session_setting(words) {
        Some((name, value)) => Ok(Command::ShowSession(name, value)),
        None => Err(CommandError::UnknownTopic(spelled())),
    }
}

fn session_setting(name: &str) -> Option<(&'static str, &'static str)> {
    SESSION_SETTINGS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).copied()
}

fn set(arguments: &[Token]) -> Result<Command, CommandError> {
    const FORM: &str = "SET name = value";
    let arguments = match arguments {
        // SET SESSION and SET LOCAL only mean something where sessions have settings.
        [Token::Word(scope), rest @ ..]
            if rest.len() > 1
                && (scope.eq_ignore_ascii_case("session")
                    || scope.eq_ignore_ascii_case("local"))
                && !matches!(rest[0], Token::Equals) =>
        {
            rest
        }
        all => all,
    };
    match arguments {
        [Token::Word(name), ..]
            if name.eq_ignore_ascii_case("characteristics")
                || name.eq_ignore_ascii_case("transaction")
                || name.eq_ignore_ascii_case("names")
                || name.eq_ignore_ascii_case("time") =>
        {
            return Ok(Command::SetSession);
        }
        _ => {}
    }
    let [Token::Word(name) | Token::Name(name), operator, value @ ..] = arguments else {
        return Err(CommandError::Form(FORM));
    };
    let assigns = match operator {
        Token::Equals => true,
        Token::Word(word) => word.eq_ignore_ascii_case("to"),
        _ => false,
    };
    if !assigns || value.is_empty() {
        return Err(CommandError::Form(FORM));
    }
    if session_setting(name).is_some() {
        return Ok(Command::SetSession);
    }
    match value {
        [Token::Word(value) | Token::Name(value) | Token::Literal(value)] => {
            Ok(Command::Set { name: name.to_ascii_lowercase(), value: value.clone() })
        }
        _ => Err(CommandError::Form("SET name = value, with a value of several words in quotes")),
    }
}

fn shutdown(arguments: &[Token]) -> Result<Command, CommandError> {
    let how = match arguments {
        [] => Shutdown::Immediate,
        [Token::Word(word)] if word.eq_ignore_ascii_case("WAIT_FOR_SERVERS") => {
            Shutdown::WaitForServers
        }
        [Token::Word(word)] if word.eq_ignore_ascii_case("WAIT_FOR_CLIENTS") => {
            Shutdown::WaitForClients
        }
        _ => return Err(CommandError::Form("SHUTDOWN [WAIT_FOR_SERVERS | WAIT_FOR_CLIENTS]")),
    };
    Ok(Command::Shutdown(how))
}

#[cfg(test)]
mod tests;
