// A stand-in for libcuda.so.1: as much of the driver as is asked before libtorch is loaded. What it has, and how it
// fails, is told by variables.
#include <stdlib.h>
#include <string.h>

// FAKE_CUDA_INIT: what cuInit returns.
int cuInit(unsigned flags) {
  const char *code = getenv("FAKE_CUDA_INIT");
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (flags != 0) return 1;
  if (code) return atoi(code);
  // As the driver: who is shown nothing has no device.
  return visible && !(*visible >= '0' && *visible <= '2') ? 100 : 0;
}

// FAKE_CUDA_VERSION: the CUDA that it knows; 13.0 if nothing is said.
int cuDriverGetVersion(int *version) {
  const char *told = getenv("FAKE_CUDA_VERSION");
  *version = told ? atoi(told) : 13000;
  return 0;
}

int cuDeviceGetCount(int *count) {
  *count = 3;
  return 0;
}

int cuDeviceGet(int *device, int ordinal) {
  *device = 100 + ordinal;
  return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  strncpy(name, "NVIDIA of no kind", length);
  return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = device == 101 ? 20ul << 30 : 80ul << 30;
  return 0;
}

// The compute capability, 9.0.
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  if (attribute != 75 && attribute != 76) return 1;
  *value = attribute == 75 ? 9 : 0;
  return 0;
}

// 00000000-0000-0000-0000-0000000000NN, NN being 0xa0 and the ordinal.
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  memset(uuid, 0, 16);
  uuid[15] = 0xa0 + device - 100;
  return 0;
}
