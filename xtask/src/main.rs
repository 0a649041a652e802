//! Checks of this workspace that no public tool makes: `cargo xtask check`; its size, `cargo xtask house`,
//! with its circles of files, `cargo xtask house circles`; and its SBOM, `cargo xtask sbom`.
//!
//! Each check is a pure function from texts to findings, so that its tests can show it failing;
//! only this file and `tree` touch the disk. What a public tool checks better (formatting, lints,
//! advisories) is left to it; licences are here too, because cargo-deny is not on every machine.

mod circles;
mod directions;
mod duplicates;
mod finding;
mod house;
mod licences;
mod links;
mod metadata;
mod places;
mod pure;
mod purity;
mod sbom;
mod shape;
mod source;
mod spdx;
mod tree;
mod unsafety;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use finding::{Finding, Level};
use metadata::Metadata;
use tree::Tree;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => check(),
        ["house"] => house(house::table),
        ["house", "circles"] => house(house::circles),
        ["sbom"] => sbom(std::env::consts::ARCH),
        ["sbom", arch] => sbom(arch),
        _ => {
            eprintln!("usage: cargo xtask check | house [circles] | sbom [ARCH]");
            ExitCode::from(2)
        }
    }
}

/// Cargo says where this package lies, and it lies in the root. Asked when it runs: one target
/// directory may serve several checkouts.
fn root() -> Option<PathBuf> {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    manifest.parent().map(Path::to_owned)
}

/// Prints what the program for `arch` is linked from.
fn sbom(arch: &str) -> ExitCode {
    let document = root().ok_or("run it by `cargo xtask sbom`".to_owned()).and_then(|root| {
        let lock = std::fs::read_to_string(root.join("Cargo.lock"))
            .map_err(|error| format!("Cargo.lock: {error}"))?;
        sbom::document(&cargo_metadata(&root, arch)?, &lock)
    });
    match document {
        Ok(document) => {
            println!("{document:#}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Prints how big the house is, or which files need each other.
fn house(table: impl Fn(&Tree) -> String) -> ExitCode {
    match root()
        .ok_or("run it by `cargo xtask house`".to_owned())
        .and_then(|root| Tree::read(&root))
    {
        Ok(tree) => {
            print!("{}", table(&tree));
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> ExitCode {
    let Some(root) = root() else {
        eprintln!("error: run it by `cargo xtask check`");
        return ExitCode::from(2);
    };
    let findings = match findings(&root) {
        Ok(findings) => findings,
        Err(reason) => {
            eprintln!("error: {reason}");
            return ExitCode::FAILURE;
        }
    };
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|f| f.level == Level::Error).count();
    println!("xtask check: {errors} errors, {} warnings", findings.len() - errors);
    if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// All findings, in the order of the checks, or why they could not be made.
fn findings(root: &Path) -> Result<Vec<Finding>, String> {
    let tree = Tree::read(root)?;
    let metadata = Metadata::parse(&cargo_metadata(root, std::env::consts::ARCH)?)?;
    let deny = tree.text("deny.toml").ok_or("deny.toml is missing: it lists the licences")?;
    let allowed = licences::allowed(deny)?;
    Ok([
        directions::check(&metadata),
        licences::check(&metadata, &allowed),
        duplicates::check(&metadata),
        purity::check(&tree),
        circles::check(&tree),
        unsafety::check(&tree),
        shape::check(&tree),
        links::check(&tree),
        places::check(&tree),
    ]
    .concat())
}

/// What cargo says of the workspace, for one architecture only: other systems' dependencies would have to
/// be downloaded to be named, and are not part of what is built here.
fn cargo_metadata(root: &Path, arch: &str) -> Result<String, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let host = format!("{arch}-unknown-linux-gnu");
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &host])
        .output()
        .map_err(|error| format!("cargo metadata does not run: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}
