//! `hawser lab run NAME --report` without a command: its command line.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;

use super::{Failure, LACKS, Run, UNFAITHFUL, description, failed};
use crate::lab_report::case::Case;
use crate::lab_report::{self, ReportError};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// With --report and no command: what, with commas [default: all of the network's].
    #[arg(long, value_name = "CASES", value_delimiter = ',', value_parser = case(), conflicts_with = "command")]
    only: Vec<Case>,
    /// With --report and no command: rounds, each with a seed of its own; medians are shown.
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "command",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// With --report and no command: how much of the work, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, conflicts_with = "command",
          value_parser = clap::value_parser!(u64).range(1..=100))]
    share: u64,
    /// With --report and no command: the first round's seed.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "command")]
    seed: u64,
}

fn case() -> impl TypedValueParser<Value = Case> {
    let names = PossibleValuesParser::new(Case::ALL.map(Case::name));
    names
        .map(|name| Case::ALL.into_iter().find(|case| case.name() == name).unwrap_or(Case::CopyOut))
}

impl From<ReportError> for Failure {
    fn from(error: ReportError) -> Self {
        let code = match &error {
            ReportError::Unsupported(_) | ReportError::NotRoot => LACKS,
            ReportError::Up { code, .. } => *code,
            ReportError::Interrupted => 130,
            ReportError::System { .. } => 1,
        };
        Self(code, error.to_string())
    }
}

pub(super) fn run(arguments: &Run) -> Result<(), Failure> {
    let Run { name, report, report_json, compare, accept_unfaithful, .. } = arguments;
    let (_, own_name, source) = description(name)?;
    let all = Case::of(name);
    let cases = if compare.only.is_empty() { all } else { compare.only.clone() };
    let options = lab_report::Options {
        name: own_name.clone(),
        source,
        cases,
        rounds: compare.rounds,
        share: compare.share,
        seed: compare.seed,
    };
    let default = || PathBuf::from(format!("{own_name}-report.html"));
    let file = report.clone().flatten().unwrap_or_else(default);
    let done = lab_report::run(&options)?;
    lab_report::write(&done, &file, report_json.as_deref()).map_err(failed)?;
    eprintln!("the page is {}", file.display());
    let of = done.runs.len();
    match (done.runs.iter().filter(|run| run.failed.is_some()).count(), done.unfaithful().count()) {
        (0, 0) => Ok(()),
        (0, late) if *accept_unfaithful => {
            eprintln!("hawser lab: {late} of {of} runs were not faithful");
            Ok(())
        }
        (0, late) => Err(Failure(
            UNFAITHFUL,
            format!("{late} of {of} runs were not faithful; they are marked in the page"),
        )),
        (wrong, _) => Err(failed(format!("{wrong} of {of} runs failed: the page says why"))),
    }
}
