#include "postgres.h"
#include "hawser.h"
void pooler_define(void) {}
void pooler_register(void) {}
