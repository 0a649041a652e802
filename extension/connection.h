/*
 * connection.h: the server's own record of its connection, without the headers
 * of Kerberos and OpenSSL.
 *
 * libpq-be.h wants both where the server was built with them; a machine that
 * builds extensions need not have them. Of struct Port only what comes before
 * their members is used, and that lies at the same place with and without.
 */
#ifndef HAWSER_CONNECTION_H
#define HAWSER_CONNECTION_H

#include "postgres.h"

#ifdef LIBPQ_BE_H
#error "connection.h goes before libpq-be.h"
#endif
#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL
#include "libpq/libpq-be.h"

#endif							/* HAWSER_CONNECTION_H */
