//! Where the kernel is.

use std::fmt;
use std::path::{Path, PathBuf};

/// Names it.
pub const VARIABLE: &str = "HAWSER_LAB_KERNEL";
/// Where `make lab-kernel` puts it, in the repository.
const BUILT: &str = ".run/lab-kernel/linux";
/// What `make lab-kernel` puts beside it: see scripts/lab_kernel_xsave.c.
const XSAVE: &str = "xsave.so";
/// As /proc/cpuinfo has the processors whose registers are larger than user-mode Linux's buffer.
const LARGE_REGISTERS: &str = "amx_tile";

/// The kernel, and what it needs here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The program.
    pub path: PathBuf,
    /// A library to load before all others.
    pub preload: Option<PathBuf>,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// It has not been built, or stands elsewhere.
    Missing(Vec<PathBuf>),
    /// The one that was named is not there.
    Named(PathBuf),
    /// This processor needs a library that is not there.
    Preload(PathBuf),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(looked) => {
                let looked: Vec<_> = looked.iter().map(|path| path.display().to_string()).collect();
                write!(
                    f,
                    "there is no kernel for it: `make lab-kernel` in Hawser's repository builds one, in \
                     some minutes; one that stands elsewhere is named by --image or {VARIABLE} (looked \
                     for {})",
                    looked.join(", ")
                )
            }
            Self::Named(path) => {
                write!(f, "{}: no such kernel; `make lab-kernel` builds one", path.display())
            }
            Self::Preload(path) => write!(
                f,
                "this processor has {LARGE_REGISTERS}, with which user-mode Linux runs no program \
                 without {}: `make lab-kernel` builds it beside the kernel",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ImageError {}

/// Finds it: as named, below the working directory, or in the repository in which `program` was
/// built.
///
/// # Errors
/// See [`ImageError`].
pub fn find(named: Option<&Path>, program: &Path, processors: &str) -> Result<Image, ImageError> {
    let path = match named {
        Some(path) if path.is_file() => path.to_owned(),
        Some(path) => return Err(ImageError::Named(path.to_owned())),
        None => {
            // REPOSITORY/target/release/hawser
            let repository = program.ancestors().nth(3).unwrap_or(Path::new("/"));
            let looked = vec![PathBuf::from(BUILT), repository.join(BUILT)];
            let found = looked.iter().find(|path| path.is_file()).cloned();
            found.ok_or(ImageError::Missing(looked))?
        }
    };
    let path = std::path::absolute(&path).unwrap_or(path);
    let needs = processors.split_ascii_whitespace().any(|word| word == LARGE_REGISTERS);
    let library = path.with_file_name(XSAVE);
    let preload = match (needs, library.is_file()) {
        (false, _) => None,
        (true, true) => Some(library),
        (true, false) => return Err(ImageError::Preload(library)),
    };
    Ok(Image { path, preload })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("hawser-image-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join(".run/lab-kernel")).unwrap();
        path
    }

    #[test]
    fn it_is_found_in_the_repository_and_by_its_name() {
        let repository = directory("found");
        let program = repository.join("target/release/hawser");
        let built = repository.join(BUILT);
        let missing = find(None, &program, "").unwrap_err();
        assert!(missing.to_string().contains("`make lab-kernel`"), "{missing}");
        assert!(missing.to_string().contains(&built.display().to_string()), "{missing}");
        let named = find(Some(&built), &program, "").unwrap_err();
        assert_eq!(named, ImageError::Named(built.clone()));
        std::fs::write(&built, "").unwrap();
        for named in [None, Some(built.as_path())] {
            let found = find(named, &program, "flags : fpu avx512f").unwrap();
            assert_eq!(found, Image { path: built.clone(), preload: None });
        }
        std::fs::remove_dir_all(repository).unwrap();
    }

    #[test]
    fn a_processor_with_large_registers_needs_the_library() {
        let repository = directory("registers");
        let built = repository.join(BUILT);
        std::fs::write(&built, "").unwrap();
        let processors = "flags : fpu amx_bf16 amx_tile amx_int8";
        let library = built.with_file_name(XSAVE);
        let lacks = find(Some(&built), Path::new("/"), processors).unwrap_err();
        assert_eq!(lacks, ImageError::Preload(library.clone()));
        std::fs::write(&library, "").unwrap();
        let found = find(Some(&built), Path::new("/"), processors).unwrap();
        assert_eq!(found.preload, Some(library));
        std::fs::remove_dir_all(repository).unwrap();
    }
}
