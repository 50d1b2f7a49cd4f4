// Data sheets of accelerators. The rows of bench/published/hardware_accelerators.csv come first,
// with their names. Numbers of units (streaming multiprocessors, compute units, matrix units) are
// from the vendors' white papers.
#include "weft/plan/cluster/internal/tables.h"

namespace weft::plan::internal {
namespace {

using enum Generation;

constexpr const char* kMl = "ml-engineering, compute/accelerator (commit 744d01e1)";
constexpr const char* kSheet = "vendor's data sheet";

// name, generation, fp32, tf32, fp16, bf16, fp8, achievable, GB, GB/s, units, link GB/s, W, source,
// fp4
constexpr AcceleratorRow kRows[] = {
    {"V100 SXM2 16GB", kVolta, 15.7, 0, 125, 0, 0, 0, 16, 900, 80, 150, 300, kMl},
    {"V100 SXM2/SXM3 32GB", kVolta, 15.7, 0, 125, 0, 0, 0, 32, 900, 80, 150, 300, kMl},
    {"A100 SXM 40GB", kAmpere, 19.5, 156, 312, 312, 0, 271.2, 40, 1555, 108, 300, 400, kMl},
    {"A100 SXM 80GB", kAmpere, 19.5, 156, 312, 312, 0, 271.2, 80, 2039, 108, 300, 400, kMl},
    {"A100 PCIe 80GB", kAmpere, 19.5, 156, 312, 312, 0, 252.9, 80, 1935, 108, 31, 300, kMl},
    {"H100 SXM 80GB", kHopper, 67, 494.5, 989, 989, 1979, 794.5, 80, 3350, 132, 450, 700, kMl},
    // No peak is published ("between SXM and NVL"). torchtitan computes its MFU with the SXM peak.
    {"H100 SXM 96GB HBM2e 500W (Grand Teton, torchtitan)", kHopper, 67, 494.5, 989, 989, 1979, 640,
     96, 2400, 132, 450, 500, "torchtitan benchmarks"},
    {"H100 PCIe 80GB", kHopper, 51, 378, 756, 756, 1513, 0, 80, 2000, 114, 63, 350, kMl},
    {"H200 SXM 141GB", kHopper, 67, 494.5, 989, 989, 1979, 794.5, 141, 4800, 132, 450, 700, kMl},
    {"GH200", kHopper, 67, 494.5, 989, 989, 1979, 828.6, 141, 4800, 132, 450, 900, kMl},
    {"B200 SXM", kBlackwell, 80, 1125, 2250, 2250, 4500, 1745, 180, 8000, 148, 900, 1000, kMl,
     9000},
    {"B300 SXM", kBlackwell, 80, 1125, 2250, 2250, 4500, 1769, 288, 8000, 148, 900, 1000, kMl,
     13125},
    {"GB200 (per GPU)", kBlackwell, 80, 1250, 2500, 2500, 5000, 1822, 186, 8000, 148, 900, 1200,
     kMl, 10000},
    {"GB300 (per GPU)", kBlackwell, 80, 1250, 2500, 2500, 5000, 0, 288, 8000, 148, 900, 1400, kMl,
     15000},
    {"L40S", kAmpere, 91.6, 183, 362, 362, 733, 0, 48, 864, 142, 31, 350, kMl},
    {"MI250X", kOther, 47.9, 0, 383, 383, 0, 0, 128, 3280, 220, 100, 560, kMl},
    {"MI300X", kOther, 163.4, 653.7, 1300, 1300, 2610, 668.4, 192, 5300, 304, 448, 750, kMl},
    {"TPU v3 (chip, 2 cores)", kTpu, 0, 0, 0, 123, 0, 0, 32, 900, 4, 70, 450,
     "cloud.google.com/tpu/docs/v3"},
    {"TPU v4", kTpu, 0, 0, 0, 275, 0, 0, 32, 1200, 8, 50, 192, kMl},
    {"TPU v5e", kTpu, 0, 0, 0, 197, 0, 0, 16, 820, 4, 50, 0, kMl},
    {"TPU v5p", kTpu, 0, 0, 0, 459, 0, 0, 95, 2760, 8, 100, 0, kMl},
    // Others of the field.
    // 346 GB/s in the sheet. Its ECC keeps checks in the same memory. Nothing published says what
    // they cost; a fifth is assumed here, which torchgpipe_p40 agrees with.
    {"Tesla P40 24GB", kPascal, 11.76, 0, 0, 0, 0, 0, 24, 277, 30, 12, 250, kSheet},
    {"P100 SXM2 16GB", kPascal, 10.6, 0, 21.2, 0, 0, 0, 16, 732, 56, 80, 300, kSheet},
    {"P100 PCIe 16GB", kPascal, 9.3, 0, 18.7, 0, 0, 0, 16, 732, 56, 12, 250, kSheet},
    {"V100 PCIe 16GB", kVolta, 14, 0, 112, 0, 0, 0, 16, 900, 80, 12, 250, kSheet},
    {"V100 PCIe 32GB", kVolta, 14, 0, 112, 0, 0, 0, 32, 900, 80, 12, 250, kSheet},
    {"T4 16GB", kVolta, 8.1, 0, 65, 0, 0, 0, 16, 320, 40, 12, 70, kSheet},
    {"A100 PCIe 40GB", kAmpere, 19.5, 156, 312, 312, 0, 252.9, 40, 1555, 108, 31, 250, kSheet},
    {"A10 24GB", kAmpere, 31.2, 62.5, 125, 125, 0, 0, 24, 600, 72, 31, 150, kSheet},
    {"A10G 24GB", kAmpere, 31.5, 35, 70, 70, 0, 0, 24, 600, 80, 31, 300, kSheet},
    {"A30 24GB", kAmpere, 10.3, 82, 165, 165, 0, 0, 24, 933, 56, 31, 165, kSheet},
    {"A40 48GB", kAmpere, 37.4, 74.8, 149.7, 149.7, 0, 0, 48, 696, 84, 31, 300, kSheet},
    {"A6000 48GB", kAmpere, 38.7, 77.4, 154.8, 154.8, 0, 0, 48, 768, 84, 31, 300, kSheet},
    {"RTX 3090 24GB", kAmpere, 35.6, 35.6, 71, 71, 0, 0, 24, 936, 82, 31, 350, kSheet},
    {"RTX 4090 24GB", kAmpere, 82.6, 82.6, 165.2, 165.2, 330, 0, 24, 1008, 128, 31, 450, kSheet},
    {"L4 24GB", kAmpere, 30.3, 60, 121, 121, 242, 0, 24, 300, 58, 31, 72, kSheet},
    {"H100 NVL 94GB", kHopper, 60, 417.5, 835, 835, 1671, 0, 94, 3938, 132, 300, 400, kSheet},
    {"H20 96GB", kHopper, 44, 74, 148, 148, 296, 0, 96, 4000, 78, 450, 400, kSheet},
    {"H800 SXM 80GB", kHopper, 67, 494.5, 989, 989, 1979, 794.5, 80, 3350, 132, 200, 700, kSheet},
    {"A800 SXM 80GB", kAmpere, 19.5, 156, 312, 312, 0, 271.2, 80, 2039, 108, 200, 400, kSheet},
    {"B100 SXM", kBlackwell, 60, 875, 1750, 1750, 3500, 0, 180, 8000, 148, 900, 700, kSheet},
    {"MI100 32GB", kOther, 23.1, 0, 184.6, 92.3, 0, 0, 32, 1229, 120, 46, 300, kSheet},
    {"MI210 64GB", kOther, 22.6, 0, 181, 181, 0, 0, 64, 1638, 104, 50, 300, kSheet},
    {"MI250 128GB", kOther, 45.3, 0, 362, 362, 0, 0, 128, 3277, 208, 100, 500, kSheet},
    {"MI300A 128GB", kOther, 122.6, 490, 980, 980, 1961, 0, 128, 5300, 228, 448, 550, kSheet},
    {"MI325X 256GB", kOther, 163.4, 653.7, 1300, 1300, 2610, 784.9, 256, 6000, 304, 448, 1000, kMl},
    {"MI355X 288GB", kOther, 157.3, 0, 2300, 2300, 4600, 1580, 288, 8000, 256, 538, 1400, kMl},
    {"TPU v2 (chip, 2 cores)", kTpu, 0, 0, 0, 45, 0, 0, 16, 600, 2, 62, 280,
     "cloud.google.com/tpu/docs/v2"},
    {"TPU v6e", kTpu, 0, 0, 0, 918, 0, 0, 32, 1640, 4, 100, 0, kSheet},
    {"Gaudi 2", kOther, 0, 0, 432, 432, 865, 0, 96, 2460, 24, 262, 600, kSheet},
    {"Gaudi 3", kOther, 0, 0, 1677, 1677, 1677, 0, 128, 3700, 64, 525, 900, kSheet},
    {"Trainium 1", kOther, 47.5, 0, 190, 190, 0, 0, 32, 820, 2, 192, 0, kSheet},
    {"Trainium 2", kOther, 181, 0, 667, 667, 1299, 0, 96, 2900, 8, 384, 0, kSheet},
    {"K80 (one GPU, 12GB)", kPascal, 2.8, 0, 0, 0, 0, 0, 12, 240, 13, 10, 150, kSheet},
    // One socket: 24 cores at 2.5 GHz with two AVX-512 units, six channels of DDR4-2933.
    {"CPU socket (24 cores, AVX-512)", kCpu, 3.8, 0, 0, 0, 0, 0, 192, 140, 24, 40, 205, kSheet},
    {"CPU core (AVX2)", kCpu, 0.08, 0, 0, 0, 0, 0, 8, 12, 1, 8, 12, kSheet},
};

}  // namespace

std::span<const AcceleratorRow> accelerator_rows() { return kRows; }

}  // namespace weft::plan::internal
