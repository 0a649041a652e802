//! Lines for systemd's journal, each with its priority (sd-daemon(3)): `journalctl -p warning` shows the
//! warnings. The journal has the time itself.

use std::fs::File;
use std::io::stderr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::Written;

/// Whether standard error is the journal, and not a file or pipe to which it was redirected since
/// (systemd.exec(5), JOURNAL_STREAM).
pub(super) fn is_standard_error() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    let metadata = stderr().as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    metadata.is_ok_and(|own| named == format!("{}:{}", own.dev(), own.ino()))
}

/// A format whose lines begin with their priority (syslog(3)).
pub(super) struct WithPriority<F>(pub(super) F);

impl<F, S, N> FormatEvent<S, N> for WithPriority<F>
where
    F: FormatEvent<S, N>,
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> Written {
        out.write_str(match *event.metadata().level() {
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            Level::DEBUG | Level::TRACE => "<7>",
        })?;
        self.0.format_event(context, out, event)
    }
}
