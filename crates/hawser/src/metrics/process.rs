//! What the kernel says of this process.

use std::fs;

/// Ticks a second in `/proc/PID/stat`: USER_HZ, which is 100 for userspace whatever the kernel's own
/// HZ is (include/asm-generic/param.h).
const TICKS_PER_SECOND: f64 = 100.0;

/// Figures of this process; zero where the kernel does not tell.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ProcessFigures {
    /// Memory that is this process's alone (RssAnon).
    pub private_bytes: u64,
    /// Memory that it has in RAM (VmRSS).
    pub resident_bytes: u64,
    /// Address space (VmSize).
    pub virtual_bytes: u64,
    /// Descriptors in use.
    pub descriptors: u64,
    /// Descriptors that it may have.
    pub descriptors_max: u64,
    /// Processor time, in the kernel and outside of it.
    pub cpu_seconds: f64,
}

impl ProcessFigures {
    /// The figures of this process now.
    pub fn read() -> Self {
        let text =
            |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let status = text("status");
        Self {
            private_bytes: kibibytes(&status, "RssAnon:"),
            resident_bytes: kibibytes(&status, "VmRSS:"),
            virtual_bytes: kibibytes(&status, "VmSize:"),
            descriptors: descriptors(),
            descriptors_max: open_files_limit(&text("limits")),
            cpu_seconds: cpu_seconds(&text("stat")),
        }
    }
}

fn kibibytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let number = line.trim().strip_suffix("kB").unwrap_or_default().trim();
    number.parse::<u64>().unwrap_or(0).saturating_mul(1024)
}

fn descriptors() -> u64 {
    // Since Linux 6.2 the directory's size is the count (fs/proc/fd.c, proc_fd_getattr); to read
    // the directory of 100,000 connections takes tens of milliseconds.
    match fs::metadata("/proc/self/fd") {
        Ok(metadata) if metadata.len() > 0 => metadata.len(),
        Ok(_) => fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
        Err(_) => 0,
    }
}

fn open_files_limit(limits: &str) -> u64 {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn cpu_seconds(stat: &str) -> f64 {
    // The name in brackets may hold anything: fields are counted from its end (proc(5)).
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(kibibytes("VmSize:\t  10 kB\nVmRSS:\t 2 kB\n", "VmRSS:"), 2048);
        assert_eq!(kibibytes("VmSize:\t  10 kB\n", "VmRSS:"), 0);
        let limits = "Limit  Soft Limit\nMax open files            1024   4096   files\n";
        assert_eq!(open_files_limit(limits), 1024);
        let stat = "1 (a) b) S 1 1 1 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 5";
        assert!((cpu_seconds(stat) - 2.0).abs() < f64::EPSILON);
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let figures = ProcessFigures::read();
        assert!(figures.resident_bytes >= figures.private_bytes && figures.private_bytes > 0);
        assert!(figures.descriptors >= 3 && figures.descriptors <= figures.descriptors_max);
    }
}
