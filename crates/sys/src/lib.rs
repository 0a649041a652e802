//! System calls that Hawser makes, each with its error and its minimum kernel version.
