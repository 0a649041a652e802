//! Plans that a server process keeps for functions.

use crate::relay::backend::Backend;
use crate::relay::socket::Socket;
use crate::session::settings::Settings;

impl<S: Socket> Backend<S> {
    /// Appends the command that keeps functions of PL/pgSQL from using plans made under another
    /// client's settings: constants such as `'2024-01-01'::timestamptz` are read when a function is
    /// first called, and functions declared IMMUTABLE are called then.
    ///
    /// Shared statements stay, and the server analyses them again when they are executed: those
    /// that are run under other settings than those of their Parse are prepared again. DISCARD
    /// takes a snapshot, which may wait for others where transactions are deferrable by default.
    pub(crate) fn discard_plans(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        const BEGIN: &[u8] = b"BEGIN ISOLATION LEVEL READ COMMITTED, NOT DEFERRABLE\0\0\0";
        self.inject_block(BEGIN, b"DISCARD PLANS".to_vec(), out);
        let table = &self.pool.statements;
        self.prepared.statements.mark_stale_if(|statement| {
            !table.give_alike(&statement.settings, &statement.run_under)
        });
        self.session.plan_functions_under(desired);
        self.session.function_plans_are_own = true;
    }
}
