// Tables of the catalog, in files of their own.
#pragma once

#include <span>

#include "weft/plan/cluster/catalog.h"

namespace weft::plan::internal {

// A row of the table of accelerators: TFLOP/s, GB and GB/s as data sheets print them.
struct AcceleratorRow {
  const char* name;
  Generation generation;
  double fp32, tf32, fp16, bf16, fp8;
  double achievable;  // TFLOP/s of 16-bit products, measured by ml-engineering's mamf-finder.
  double memory_gb, bandwidth_gb;
  int units;
  double link_gb;  // One direction, of one device.
  double watts;
  const char* source;
  double fp4 = 0;  // Dense, from the vendor's data sheet.
};
struct LinkRow {
  const char* name;
  double gb_per_s;
  double latency_us;
  double share;
  const char* source;
};

std::span<const AcceleratorRow> accelerator_rows();
std::span<const LinkRow> link_rows();
std::span<const System> system_rows();

}  // namespace weft::plan::internal
