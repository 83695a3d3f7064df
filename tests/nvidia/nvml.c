// A stand-in for libnvidia-ml.so.1: a GPU, and a part that MIG cut off another one.
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

struct memory { unsigned version; unsigned long long total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };

static char whole, part;

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  *device = &whole;
  if (!strcmp(uuid, "GPU-00000000-0000-0000-0000-0000000000a0")) return SUCCESS;
  *device = &part;
  if (!strcmp(uuid, "MIG-00000000-0000-0000-0000-0000000000a1")) return SUCCESS;
  return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory) {
  const unsigned long long gib = 1ull << 30;
  memory->total = (device == &whole ? 80 : 20) * gib;
  memory->used = (device == &whole ? 10 : 3) * gib;
  memory->free = memory->total - memory->used;
  memory->reserved = 0;
  return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *rates) {
  if (device != &whole) return NOT_SUPPORTED;
  rates->gpu = 40;
  rates->memory = 7;
  return SUCCESS;
}
