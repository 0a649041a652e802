/*
 * secret.c: how the server knows that a message comes from its pooler.
 *
 * Model       The server and the pooler have a secret (hawser.secret_file). A
 *             session that begins with hawser.hand_over = on gets a random
 *             challenge. Its key is made of both:
 *                 key = the first 16 bytes of HMAC-SHA256(secret, challenge)
 *             and a message of the pooler's ends with SipHash-2-4(key, message).
 * Invariants  The secret is in no setting, message or log; what is sent is of
 *             use in this one session only, and once, because messages are
 *             numbered. A client that shares the session sees the challenge at
 *             most. It has one guess out of 2^64: the session ends with it.
 * Why not     A password in the message: statements are logged, and shown in
 *             pg_stat_activity. HMAC for each message: 1 us instead of 0.05.
 * Sources     J.-P. Aumasson, D. J. Bernstein: SipHash, a fast short-input PRF
 */
#include "postgres.h"

#include "hawser.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hmac.h"
#include "common/sha2.h"
#include "miscadmin.h"

/* Shorter ones could be guessed. */
#define SECRET_BYTES_MIN 32
#define SECRET_BYTES_MAX 1024
#define CHALLENGE_BYTES 16

/* Of the postmaster; its children have a copy of their own. */
static uint8 secret[SECRET_BYTES_MAX];
static size_t secret_length = 0;

static char challenge[CHALLENGE_BYTES * 2 + 1] = "";
static uint8 random_part[CHALLENGE_BYTES];
static uint8 key[16];
static bool key_is_made = false;

/* The file as it is now, in the postmaster, at its start. */
void
secret_read(const char *path)
{
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat about;
	uint8		bytes[SECRET_BYTES_MAX + 1];
	ssize_t		length = -1;

	if (fd < 0 || fstat(fd, &about) != 0 || (length = read(fd, bytes, sizeof(bytes))) < 0)
		ereport(FATAL, (errcode_for_file_access(),
						errmsg("could not read hawser.secret_file \"%s\": %m", path)));
	close(fd);
	/* as of the key of TLS */
	if (!S_ISREG(about.st_mode) ||
		(about.st_mode & (about.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO)))
		ereport(FATAL, (errcode(ERRCODE_CONFIG_FILE_ERROR),
						errmsg("hawser.secret_file \"%s\" can be read or written by others", path),
						errhint("Its permissions are to be u=rw (0600), or u=rw,g=r (0640) if it is root's.")));
	while (length > 0 && (bytes[length - 1] == '\n' || bytes[length - 1] == '\r'))
		length--;
	if (length < SECRET_BYTES_MIN || length > SECRET_BYTES_MAX)
		ereport(FATAL, (errcode(ERRCODE_CONFIG_FILE_ERROR),
						errmsg("hawser.secret_file \"%s\" has %zd bytes", path, length),
						errhint("%d to %d are right; \"openssl rand -hex 32\" makes 64.",
								SECRET_BYTES_MIN, SECRET_BYTES_MAX)));
	memcpy(secret, bytes, length);
	secret_length = length;
	explicit_bzero(bytes, sizeof(bytes));
}

bool
secret_is_known(void)
{
	return secret_length > 0;
}

/* For this session, in ASCII, as the client gets it. Empty if there is no secret. */
const char *
secret_challenge(void)
{
	static const char hex[] = "0123456789abcdef";

	if (challenge[0] != '\0' || !secret_is_known() || !pg_strong_random(random_part, CHALLENGE_BYTES))
		return challenge;
	for (int i = 0; i < CHALLENGE_BYTES; i++)
	{
		challenge[2 * i] = hex[random_part[i] >> 4];
		challenge[2 * i + 1] = hex[random_part[i] & 15];
	}
	return challenge;
}

/*
 * Makes the key, at its first use: the challenge is sent outside of
 * transactions, where the server's HMAC cannot be called.
 */
static bool
make_key(void)
{
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	pg_hmac_ctx *hmac;

	if (key_is_made || challenge[0] == '\0')
		return key_is_made;
	hmac = pg_hmac_create(PG_SHA256);
	if (hmac == NULL)
		return false;
	if (pg_hmac_init(hmac, secret, secret_length) >= 0 &&
		pg_hmac_update(hmac, random_part, CHALLENGE_BYTES) >= 0 &&
		pg_hmac_final(hmac, digest, sizeof(digest)) >= 0)
	{
		memcpy(key, digest, sizeof(key));
		key_is_made = true;
	}
	pg_hmac_free(hmac);
	explicit_bzero(digest, sizeof(digest));
	return key_is_made;
}

static inline uint64
load_little_endian(const uint8 *at, int bytes)
{
	uint64		value = 0;

	for (int i = 0; i < bytes; i++)
		value |= (uint64) at[i] << (8 * i);
	return value;
}

#define ROTATE(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define ROUND \
	do { \
		v0 += v1; v1 = ROTATE(v1, 13); v1 ^= v0; v0 = ROTATE(v0, 32); \
		v2 += v3; v3 = ROTATE(v3, 16); v3 ^= v2; \
		v0 += v3; v3 = ROTATE(v3, 21); v3 ^= v0; \
		v2 += v1; v1 = ROTATE(v1, 17); v1 ^= v2; v2 = ROTATE(v2, 32); \
	} while (0)

static uint64
siphash(const uint8 *bytes, size_t length)
{
	uint64		k0 = load_little_endian(key, 8),
				k1 = load_little_endian(key + 8, 8);
	uint64		v0 = k0 ^ UINT64CONST(0x736f6d6570736575),
				v1 = k1 ^ UINT64CONST(0x646f72616e646f6d),
				v2 = k0 ^ UINT64CONST(0x6c7967656e657261),
				v3 = k1 ^ UINT64CONST(0x7465646279746573);
	size_t		whole = length & ~(size_t) 7;
	uint64		word;

	for (size_t i = 0; i < whole; i += 8)
	{
		word = load_little_endian(bytes + i, 8);
		v3 ^= word;
		ROUND;
		ROUND;
		v0 ^= word;
	}
	word = (uint64) length << 56 | load_little_endian(bytes + whole, length - whole);
	v3 ^= word;
	ROUND;
	ROUND;
	v0 ^= word;
	v2 ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* Whether the last 8 bytes are right for those before. A session without a challenge has no key. */
bool
secret_made(const uint8 *message, size_t length)
{
	if (length < 8 || !make_key())
		return false;
	return siphash(message, length - 8) == load_little_endian(message + length - 8, 8);
}
