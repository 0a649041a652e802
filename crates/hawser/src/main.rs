//! Command line of Hawser.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use hawser::config::Config;
use hawser::login::admin::NoConsole;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().collect();
    let config = match Config::load(Path::new(&arguments[3])) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::FAILURE;
        }
    };
    match hawser::serve::serve(config, Arc::new(NoConsole)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hawser: {error}");
            ExitCode::FAILURE
        }
    }
}
