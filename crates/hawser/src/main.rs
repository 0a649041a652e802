//! Command line of Hawser.

use std::process::ExitCode;

fn main() -> ExitCode {
    hawser::cli::run(std::env::args_os())
}
