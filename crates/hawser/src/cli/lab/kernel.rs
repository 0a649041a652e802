//! `hawser lab --kernel`: its command line.

use std::path::{Path, PathBuf};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use hawser_congestion::tuner::algorithm::Algorithm;

use super::{Failure, description_text, failed};
use crate::cli::print;
use crate::lab_kernel::boot::{self, BootError, Exchange};
use crate::lab_kernel::image::{self, ImageError};
use crate::lab_kernel::outcome::Outcomes;
use crate::lab_kernel::{Network, Plan, SELFTEST_FILE};
use crate::process::random_bytes;

/// EX_OSFILE of sysexits.h.
const NO_KERNEL: u8 = 72;
/// Hosts and networks are many, an hour of virtual time is not needed by any.
const NETWORKS_MAX: usize = 16;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Compare congestion control algorithms over descriptions, in a kernel of its own that has them
    /// all and in virtual time: user-mode Linux, which `make lab-kernel` builds. It needs no rights.
    #[arg(long, value_name = "FILE|NAME", num_args(0..), default_missing_value = "long-fat")]
    pub(super) kernel: Option<Vec<String>>,
    /// With --kernel: which, with commas [default: all that it has].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "kernel")]
    algorithms: Vec<String>,
    /// With --kernel: connections at a time, with commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1],
          value_parser = clap::value_parser!(u32).range(1..=32))]
    flows: Vec<u32>,
    /// With --kernel: seconds of each transfer, of which the first 5 are its start-up.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(6..=300))]
    seconds: u32,
    /// With --kernel: rounds; medians of them are shown.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// With --kernel: what all chance of the networks follows from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// With --kernel: the kernel [default: what `make lab-kernel` has built; also HAWSER_LAB_KERNEL].
    #[arg(long, value_name = "FILE", requires = "kernel")]
    image: Option<PathBuf>,
    /// With --kernel: prove rate, delay and loss there instead, as `selftest` does here.
    #[arg(long, requires = "kernel", conflicts_with_all = ["algorithms", "flows", "seconds", "rounds", "seed"])]
    selftest: bool,
    /// With --kernel: as JSON, with each run and second.
    #[arg(long, requires = "kernel")]
    json: bool,
}

impl From<BootError> for Failure {
    fn from(error: BootError) -> Self {
        Self(error.exit_code(), error.to_string())
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Self(NO_KERNEL, error.to_string())
    }
}

pub(super) fn run(names: &[String], options: &Options) -> Result<(), Failure> {
    let (plan, texts) = plan(names, options)?;
    let program = std::env::current_exe().map_err(failed)?;
    let variable = std::env::var_os(image::VARIABLE).filter(|path| !path.is_empty());
    let named = options.image.clone().or(variable.map(PathBuf::from));
    // If it cannot be read, the kernel itself reports what it lacks.
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let image = image::find(named.as_deref(), &program, &processors)?;
    if plan.is_selftest {
        let exchange = Exchange::new(&plan, &texts, &program)?;
        boot::run(&image, &exchange, |line| {
            if options.json {
                eprintln!("{line}");
            } else {
                print(&format!("{line}\n"));
            }
        })?;
        if options.json {
            print(&exchange.read(SELFTEST_FILE)?);
        }
        return Ok(());
    }
    let outcomes = boot(&plan, &texts, &program, &image)?;
    if options.json {
        print(&(serde_json::to_string_pretty(&outcomes).map_err(failed)? + "\n"));
    } else {
        print(&outcomes.to_text());
    }
    Ok(())
}

fn boot(
    plan: &Plan,
    texts: &[String],
    program: &Path,
    image: &image::Image,
) -> Result<Outcomes, Failure> {
    let exchange = Exchange::new(plan, texts, program)?;
    let began = Instant::now();
    boot::run(image, &exchange, |line| eprintln!("{line}"))?;
    Ok(Outcomes::read(plan, &exchange, began.elapsed().as_secs_f64())?)
}

/// The plan, and the text of each description.
fn plan(names: &[String], options: &Options) -> Result<(Plan, Vec<String>), Failure> {
    if names.len() > NETWORKS_MAX {
        return Err(Failure(2, format!("at most {NETWORKS_MAX} networks at a time")));
    }
    if let Some(name) = options.algorithms.iter().find(|name| Algorithm::new(name).is_none()) {
        return Err(Failure(2, format!("`{name}` is no name of an algorithm")));
    }
    let (mut networks, mut texts) = (Vec::new(), Vec::new());
    for name in names {
        let (description, text) = description_text(name)?;
        let far = description.hosts.last().map(|host| host.name.clone()).unwrap_or_default();
        networks.push(Network { name: name.clone(), far });
        texts.push(text);
    }
    let mut token = [0; 18];
    random_bytes(&mut token);
    let plan = Plan {
        networks,
        algorithms: options.algorithms.clone(),
        flows: options.flows.clone(),
        seconds: options.seconds,
        rounds: options.rounds,
        seed: options.seed,
        is_selftest: options.selftest,
        token: URL_SAFE_NO_PAD.encode(token),
    };
    Ok((plan, texts))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Lab, LabCommand};
    use super::*;

    #[derive(Debug, Parser)]
    struct Whole {
        #[command(flatten)]
        lab: Lab,
    }

    fn parsed(line: &str) -> Result<Lab, clap::Error> {
        Whole::try_parse_from(line.split(' ')).map(|whole| whole.lab)
    }

    #[test]
    fn it_stands_in_place_of_a_command() {
        let lab = parsed("lab --kernel").unwrap();
        assert_eq!(lab.kernel.kernel.as_deref(), Some(&["long-fat".to_owned()][..]));
        assert!(lab.command.is_none());
        let lab = parsed("lab --kernel long-fat lan --algorithms bbr,cubic --json").unwrap();
        assert_eq!(lab.kernel.kernel.map(|names| names.len()), Some(2));
        let lab = parsed("lab list").unwrap();
        assert!(lab.kernel.kernel.is_none());
        assert!(matches!(lab.command, Some(LabCommand::List(_))));
        for wrong in [
            "lab --kernel --seconds 5",
            "lab --algorithms bbr",
            "lab --kernel --json list",
            "lab --selftest",
            "lab --kernel --selftest --seconds 10",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_is_said_before_anything_is_started() {
        let options = |line: &str| parsed(line).unwrap().kernel;
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let lab = options("lab --kernel --algorithms b/r");
        let Failure(code, said) = plan(&names(&["long-fat"]), &lab).unwrap_err();
        assert!(code == 2 && said.contains("`b/r`"), "{said}");
        let lab = options("lab --kernel");
        let Failure(code, said) = plan(&names(&["/no/such/file"]), &lab).unwrap_err();
        assert!(code == 65 && said.contains("long-fat"), "{said}");
        let (plan, texts) = plan(&names(&["long-fat"]), &lab).unwrap();
        assert_eq!((plan.seconds, plan.rounds, plan.networks[0].far.as_str()), (60, 1, "far"));
        assert!(texts[0].contains("217ms"));
    }
}
