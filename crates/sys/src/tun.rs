//! TUN devices: a network interface whose other end is this process.
//!
//! # Model
//! What the kernel sends by the interface is read here, a packet a call; what is written here, the
//! kernel receives by it. Each packet has a header of [`HEADER_BYTES`] before it (`virtio_net_hdr`),
//! by which the kernel may leave a checksum undone: the bytes never leave this machine, so handing
//! the header on with the packet saves computing and checking it.
//!
//! # Invariants  the device lives as long as the descriptor, in the network namespace in which it
//!               was made, wherever the thread goes afterwards
//! # Limits      `CONFIG_TUN`, `/dev/net/tun`, CAP_NET_ADMIN in the namespace. Segmentation offload
//!               stays off: a packet is one packet

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// Bytes of `virtio_net_hdr`: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
pub const HEADER_BYTES: usize = 10;

/// A device of this process.
#[derive(Debug)]
pub struct Tun(OwnedFd);

impl Tun {
    /// Makes a device in the network namespace of this thread. It is down and has no address.
    ///
    /// # Errors
    /// As open(2) of `/dev/net/tun` (ENOENT without the driver, EACCES), and EPERM without
    /// CAP_NET_ADMIN, EBUSY where the name is taken; `InvalidInput` for a name that is too long.
    pub fn create(name: &str) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
        // SAFETY: ifreq is plain data, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        let kind = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = i16::try_from(kind).expect("the flags are 16 bits");
        // SAFETY: TUNSETIFF reads and writes an ifreq, and this is one.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let offload = libc::c_ulong::from(libc::TUN_F_CSUM);
        // SAFETY: TUNSETOFFLOAD takes a number.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, offload) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(fd))
    }

    /// The next packet that the kernel has sent, with its header.
    ///
    /// # Errors
    /// `WouldBlock` where there is none; EIO when the device is down.
    pub fn read(&self, place: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, place)?)
    }

    /// Gives the kernel a packet with its header.
    ///
    /// # Errors
    /// EINVAL for what is no IP packet; EIO when the device is down.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, packet)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
