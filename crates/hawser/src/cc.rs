//! `hawser cc`, the command line of [`hawser_congestion::cc`].

pub mod command;

use std::sync::Arc;

use hawser_congestion::cc::usage::Tuned;
use hawser_sys::congestion::flows::Flows;

use crate::socket::stream::Link;

impl Tuned for Link {
    fn tune(&mut self, flows: Arc<Flows>) {
        self.tune(flows);
    }
}
