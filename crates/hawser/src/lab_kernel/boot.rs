//! Running the kernel.
//!
//! # Invariants
//! * nothing is left of it: the exchange is removed, and the kernel, which is asked to end when this
//!   process does, ends its own processes
//! * what its console says is the user's only where it is marked; the rest is shown when it dies

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hawser_sys::process;

use super::image::Image;
use super::{END_FILE, End, MARK, PLAN_FILE, Plan, description_file};

/// Its memory, of which it touches a fifth. From 768 MiB on Linux gives a connection's buffers the 4
/// and 6 MiB at most that larger machines give them.
const MEMORY: &str = "1024M";
/// Lines of the console that are shown when it dies.
const LAST_LINES: usize = 12;
/// A longer line of the console is none of ours.
const LINE_BYTES_MAX: usize = 4096;
/// SIGINT and SIGTERM, as signal(7) numbers them everywhere.
const INTERRUPTS: [i32; 2] = [2, 15];

/// Why there is no outcome.
#[derive(Debug)]
pub enum BootError {
    /// The exchange cannot be made or read.
    Exchange(PathBuf, io::Error),
    /// The kernel's command line has no room for such a path.
    Blank(PathBuf),
    /// The kernel does not run.
    Start(PathBuf, io::Error),
    /// It has ended before its work.
    Died {
        /// What its console said last.
        console: Vec<String>,
    },
    /// It says why it failed.
    Failed(End),
    /// A signal has ended it.
    Interrupted(i32),
}

impl BootError {
    /// As sysexits.h has them, or that of the program inside.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Died { .. } | Self::Start(..) => 71,
            Self::Exchange(..) | Self::Blank(_) => 73,
            Self::Failed(end) => end.code,
            Self::Interrupted(signal) => 128 + u8::try_from(*signal).unwrap_or(0),
        }
    }
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exchange(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Blank(path) => write!(
                f,
                "{}: a path with a blank cannot be given to the kernel; TMPDIR may name another place",
                path.display()
            ),
            Self::Start(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Died { console } if console.is_empty() => {
                f.write_str("the kernel has ended without a word")
            }
            Self::Died { console } => {
                write!(f, "the kernel has ended; its console said:\n    {}", console.join("\n    "))
            }
            Self::Failed(End { message, .. }) => f.write_str(message),
            Self::Interrupted(_) => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for BootError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Exchange(_, error) | Self::Start(_, error) => Some(error),
            _ => None,
        }
    }
}

/// What the host and the kernel hand each other; removed with this.
#[derive(Debug)]
pub struct Exchange(PathBuf);

impl Exchange {
    /// With the plan, the texts of its descriptions, and an init that runs `program`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(plan: &Plan, texts: &[String], program: &Path) -> Result<Self, BootError> {
        let name = format!("hawser-lab-kernel-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        if path.to_string_lossy().contains(char::is_whitespace) {
            return Err(BootError::Blank(path));
        }
        let wrong = |error| BootError::Exchange(path.clone(), error);
        // Not one that was there: others can write to the place for temporary files.
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(wrong)?;
        let this = Self(path.clone());
        let plan = serde_json::to_string(plan).map_err(|error| wrong(error.into()))?;
        fs::write(path.join(PLAN_FILE), plan).map_err(wrong)?;
        for (network, text) in texts.iter().enumerate() {
            fs::write(path.join(description_file(network)), text).map_err(wrong)?;
        }
        let quoted = program.display().to_string().replace('\'', r"'\''");
        let init = format!("#!/bin/sh\nexec '{quoted}' lab inside {}\n", path.display());
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o700).open(this.init());
        file.and_then(|mut file| file.write_all(init.as_bytes())).map_err(wrong)?;
        // Whatever the umask is.
        fs::set_permissions(this.init(), Permissions::from_mode(0o700)).map_err(wrong)?;
        Ok(this)
    }

    fn init(&self) -> PathBuf {
        self.0.join("init")
    }

    /// A file of it.
    ///
    /// # Errors
    /// It is not there.
    pub fn read(&self, name: &str) -> Result<String, BootError> {
        let path = self.0.join(name);
        fs::read_to_string(&path).map_err(|error| BootError::Exchange(path, error))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The kernel's command line.
fn arguments(exchange: &Exchange, since_epoch: Duration) -> Vec<String> {
    let fixed = "root=/dev/root rootfstype=hostfs rootflags=/ ro con=null con0=null,fd:1 \
                 time-travel=inf-cpu umid=kernel quiet";
    let mut words: Vec<String> = fixed.split_ascii_whitespace().map(str::to_owned).collect();
    words.push(format!("mem={MEMORY}"));
    words.push(format!("time-travel-start={}", since_epoch.as_nanos()));
    words.push(format!("uml_dir={}", exchange.0.display()));
    words.push(format!("init={}", exchange.init().display()));
    words
}

/// Runs it until it is off; `say` has each line for the user.
///
/// # Errors
/// See [`BootError`].
pub fn run(image: &Image, exchange: &Exchange, mut say: impl FnMut(&str)) -> Result<(), BootError> {
    let start = |error| BootError::Start(image.path.clone(), error);
    let signals = process::catch_signals(&INTERRUPTS).map_err(start)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut command = Command::new(&image.path);
    command.args(arguments(exchange, now)).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(library) = &image.preload {
        command.env("LD_PRELOAD", library);
    }
    process::end_with_parent(&mut command);
    let mut child = command.spawn().map_err(start)?;
    let number = child.id();
    let output = child.stdout.take();
    // It ends the kernel, and with it the lines that are read below.
    let watch = std::thread::spawn(move || interrupted(&signals, number));
    let mut last = VecDeque::new();
    if let Some(output) = output {
        let mut lines = BufReader::new(output);
        while let Some(line) = next_line(&mut lines).map_err(start)? {
            match line.split_once(MARK) {
                Some((_, line)) => say(line),
                None if line.is_empty() => {}
                None => last.push_back(line),
            }
            if last.len() > LAST_LINES {
                last.pop_front();
            }
        }
    }
    child.wait().map_err(start)?;
    if let Ok(Some(signal)) = watch.join() {
        return Err(BootError::Interrupted(signal));
    }
    let end = exchange.read(END_FILE).ok().and_then(|text| serde_json::from_str::<End>(&text).ok());
    match end {
        Some(End { code: 0, .. }) => Ok(()),
        Some(end) => Err(BootError::Failed(end)),
        None => Err(BootError::Died { console: last.into() }),
    }
}

/// Waits for the kernel's end, or ends it at a signal, which it gives.
fn interrupted(signals: &std::os::fd::OwnedFd, kernel: u32) -> Option<i32> {
    use std::os::fd::AsFd;
    let ended = process::descriptor_of_process(kernel).ok()?;
    loop {
        let ready = process::wait_for(&[signals.as_fd(), ended.as_fd()]).ok()?;
        if ready[1].0 {
            return None;
        }
        if let Ok(signal) = process::next_signal(signals) {
            let _ = process::send_signal(kernel, INTERRUPTS[1]);
            process::wait_for(&[ended.as_fd()]).ok()?;
            return Some(signal);
        }
    }
}

/// The next line of a console, without its end; of a longer one the beginning.
fn next_line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    if from.read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    bytes.truncate(LINE_BYTES_MAX);
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab_kernel::Network;

    fn plan() -> Plan {
        Plan {
            networks: vec![Network { name: "long-fat".to_owned(), far: "far".to_owned() }],
            algorithms: Vec::new(),
            flows: vec![1],
            seconds: 60,
            rounds: 1,
            seed: 1,
            is_selftest: false,
            token: "a token for this test".to_owned(),
        }
    }

    /// A stand-in for the kernel: a script that finds its init where a kernel would.
    fn stand_in(name: &str, script: &str) -> Image {
        let path = std::env::temp_dir().join(format!("hawser-boot-{name}-{}", std::process::id()));
        let script = format!(
            "#!/bin/sh\nfor word; do case $word in init=*) at=${{word#init=}};; esac; done\n\
             at=${{at%/init}}\n{script}\n"
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        Image { path, preload: None }
    }

    #[test]
    fn marked_output_is_the_users_and_the_end_is_reported() {
        // One test: an exchange is one a process.
        let exchange = Exchange::new(&plan(), &["# text\n".to_owned()], Path::new("/h")).unwrap();
        let place = exchange.0.clone();
        let boot = |name, script: &str| {
            let image = stand_in(name, script);
            let mut said = Vec::new();
            let done = run(&image, &exchange, |line| said.push(line.to_owned()));
            fs::remove_file(image.path).unwrap();
            (done, said)
        };
        let (done, said) = boot(
            "well",
            "[ -s $at/plan.json ] && [ -s $at/network-0.toml ] && [ -x $at/init ] || exit 1\n\
             echo Linux; printf 'hawser| round 1\\r\\n'; echo '{\"code\":0,\"message\":\"\"}' >$at/end.json",
        );
        done.unwrap();
        assert_eq!(said, ["round 1"]);
        let (done, _) = boot("refuses", "echo '{\"code\":75,\"message\":\"late\"}' >$at/end.json");
        let error = done.unwrap_err();
        assert_eq!((error.exit_code(), error.to_string()), (75, "late".to_owned()));
        fs::remove_file(place.join(END_FILE)).unwrap();
        let (done, _) = boot("dies", "echo 'Kernel panic'; exit 1");
        let error = done.unwrap_err();
        assert_eq!(error.exit_code(), 71);
        assert!(error.to_string().contains("Kernel panic"), "{error}");
        let lacks = Image { path: "/no/such/kernel".into(), preload: None };
        assert_eq!(run(&lacks, &exchange, |_| ()).unwrap_err().exit_code(), 71);
        drop(exchange);
        assert!(!place.exists());
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_is_whole() {
        let long = "x".repeat(LINE_BYTES_MAX + 10) + "\r\nnext\r\n";
        let mut from = long.as_bytes();
        assert_eq!(next_line(&mut from).unwrap().unwrap().len(), LINE_BYTES_MAX);
        assert_eq!(next_line(&mut from).unwrap().as_deref(), Some("next"));
        assert_eq!(next_line(&mut from).unwrap(), None);
    }
}
