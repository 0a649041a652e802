//! Time as an argument, the same type for all of Hawser's state machines.

pub use hawser_time::Time;
