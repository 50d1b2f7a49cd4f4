// Links and systems. The rows of bench/published/hardware_links.csv and hardware_systems.csv come
// first, with their names.
#include "weft/plan/cluster/internal/tables.h"

namespace weft::plan::internal {
namespace {

constexpr const char* kNetwork = "ml-engineering, network (commit 744d01e1)";
constexpr const char* kUnits = "unit conversion";

// Shares: busbw of large all-reduces in bench/published/nccl_busbw_summary.csv over the link's
// rate. NVLink 232/300 and 370/450, RDMA 24/25 and 48/50, TCP 10/12.5, PCIe 24/31 and 48/63.
constexpr double kNvlink = 0.78, kRdma = 0.96, kTcp = 0.8, kPcie = 0.77;

// name, GB/s, latency in us, share, source. Latencies: NCCL's hop latencies (calibrated.h), for TCP
// a round trip in a data center.
constexpr LinkRow kLinks[] = {
    {"PCIe 4.0 x16", 31, 5.7, kPcie, kNetwork},
    {"PCIe 5.0 x16", 63, 5.7, kPcie, kNetwork},
    {"PCIe 6.0 x16", 121, 5.7, kPcie, kNetwork},
    {"NVLink1 (P100, 4 links)", 80, 3.4, kNvlink, kNetwork},
    {"NVLink2 (V100, 6 links)", 150, 3.4, 0.813, kNetwork},  // 122/150
    {"NVLink3 (A100, 12 links)", 300, 3.4, kNvlink, kNetwork},
    {"NVLink4 (H100/H200, 18 links)", 450, 3.4, 0.82, kNetwork},   // 370/450
    {"NVLink5 (B200/GB200, 18 links)", 900, 3.4, 0.76, kNetwork},  // 673 to 700 of 900
    {"NVLink6 (Rubin)", 1800, 3.4, kNvlink, kNetwork},
    {"NVLink2 single link", 25, 3.4, kNvlink, kNetwork},
    {"10 GbE", 1.25, 25, kTcp, kUnits},
    {"25 GbE", 3.125, 25, kTcp, kUnits},
    {"40 GbE / IB QDR signalling 40 Gb/s (32 Gb/s data)", 4, 10, kRdma,
     "DeepSpeed, 1-bit Adam post"},
    {"100 GbE / IB EDR", 12.5, 9.6, kRdma, "ZeRO paper"},
    {"200 Gb/s IB HDR", 25, 9.6, kRdma, "SC21 text"},
    {"400 Gb/s IB NDR", 50, 9.6, kRdma, kNetwork},
    {"1 GbE", 0.125, 50, kTcp, kUnits},
    {"2.5 GbE", 0.3125, 50, kTcp, kUnits},
    {"50 GbE", 6.25, 25, kTcp, kUnits},
    {"200 GbE RoCE", 25, 9.6, kRdma, kUnits},
    {"400 GbE RoCE", 50, 9.6, kRdma, kUnits},
    {"800 Gb/s IB XDR", 100, 9.6, kRdma, kUnits},
    {"56 Gb/s IB FDR", 6.8, 9.6, kRdma, kUnits},
    {"100 Gb/s Omni-Path", 12.5, 9.6, kRdma, kUnits},
    {"Slingshot 11 (200 Gb/s)", 25, 9.6, kRdma, kUnits},
    {"EFA 400 Gb/s", 50, 15, 0.9, kUnits},
    {"PCIe 3.0 x16", 12.5, 5.7, kPcie, kUnits},
    {"NVLink-C2C", 450, 3.4, kNvlink, "vendor's data sheet"},
    {"Infinity Fabric (MI300X)", 448, 5, 0.7, "vendor's data sheet"},
    {"ICI (TPU v3)", 70, 2, 0.8, "vendor's data sheet"},
    {"shared memory", 12, 1, 0.8, "two recent cores that share a cache"},
};

const System kSystems[] = {
    {"Selene DGX A100", "A100 SXM 80GB", 8, Wiring::kSwitch, "", 200, "rdma", 0, 0, "megatron",
     "SC21 section 5: 8 x 200 Gb/s HDR InfiniBand, three-level fat tree"},
    {"Jean Zay A100", "A100 SXM 80GB", 8, Wiring::kSwitch, "", 50, "rdma", 0.212, 0,
     "megatron_deepspeed",
     "bigscience tr11: 4 x 100 Gb/s Omni-Path; share: 84.7 Gb/s of 400 measured on 4 V100 nodes"},
    {"Jean Zay V100", "V100 SXM2/SXM3 32GB", 4, Wiring::kSwitch, "", 50, "rdma", 0.212, 0,
     "megatron_deepspeed", "bigscience experiments/bandwidth: 84.7 Gb/s measured on 4 nodes"},
    {"DLPerf cluster", "V100 SXM2 16GB", 8, Wiring::kCubeMesh, "", 12.5, "rdma", 0.57, 0, "",
     "DLPerf report: one 100 Gb/s EDR card of each node, on one NUMA node; share: half of the GPUs "
     "reach it through the other processor (rows MP_1x16x1 and MP_1x32x1 of dlperf_gpt_v100)"},
    {"AWS p3.16xlarge", "V100 SXM2 16GB", 8, Wiring::kCubeMesh, "", 3.125, "tcp", 0, 0, "alpa",
     "BytePS documentation: 25 Gb/s Ethernet"},
    {"Grand Teton H100", "H100 SXM 96GB HBM2e 500W (Grand Teton, torchtitan)", 8, Wiring::kSwitch,
     "", 400, "rdma", 0, 0, "torchtitan", "torchtitan benchmarks: 8 x 400 Gb/s RDMA"},
    {"Meta Llama 3 cluster", "H100 SXM 80GB", 8, Wiring::kSwitch, "", 400, "rdma", 0, 0,
     "torchtitan", "Llama 3 paper: 8 x 400 Gb/s RoCE"},
    {"Azure NDm A100 v4", "A100 SXM 80GB", 8, Wiring::kSwitch, "", 200, "rdma", 0, 0, "deepspeed",
     "DeepSpeed Azure post: 8 x 200 Gb/s HDR"},
    {"Meta FSDP VLDB cluster", "A100 SXM 80GB", 8, Wiring::kSwitch, "", 250, "rdma", 0, 0,
     "torchtitan", "FSDP VLDB 2023 section 5: 2 Tb/s RoCE of each node"},
    {"Horovod 512-GPU cluster", "P100 PCIe 16GB", 4, Wiring::kHost, "", 3.125, "rdma", 0, 0,
     "tensorflow", "Horovod docs: 128 servers, 25 Gb/s RoCE"},
    {"torchgpipe node", "Tesla P40 24GB", 8, Wiring::kHost, "PCIe 3.0 x16", 1.25, "tcp", 0, 0,
     "torchgpipe", "torchgpipe docs: 8 Tesla P40, PCIe 3.0; one node"},
    {"AWS P6-B200", "B200 SXM", 8, Wiring::kSwitch, "", 400, "efa", 0, 0, "torchtitan",
     "ml-engineering network README: 8 x 50 GB/s EFAv4"},
    {"DeepSpeed 1-bit Adam cluster", "V100 SXM2/SXM3 32GB", 4, Wiring::kSwitch, "", 4, "rdma", 0, 0,
     "deepspeed", "DeepSpeed blog: 40 Gb/s InfiniBand QDR, 32 Gb/s of data"},
    {"DGX-1 V100", "V100 SXM2 16GB", 8, Wiring::kCubeMesh, "", 50, "rdma", 0, 0, "",
     "vendor's data sheet: 4 x 100 Gb/s EDR"},
    {"DGX-2", "V100 SXM2/SXM3 32GB", 16, Wiring::kSwitch, "", 100, "rdma", 0, 0, "",
     "vendor's data sheet: 8 x 100 Gb/s EDR"},
    {"DGX A100", "A100 SXM 80GB", 8, Wiring::kSwitch, "", 200, "rdma", 0, 0, "",
     "vendor's data sheet: 8 x 200 Gb/s HDR"},
    {"DGX H100", "H100 SXM 80GB", 8, Wiring::kSwitch, "", 400, "rdma", 0, 0, "",
     "vendor's data sheet: 8 x 400 Gb/s NDR"},
    {"DGX B200", "B200 SXM", 8, Wiring::kSwitch, "", 400, "rdma", 0, 0, "",
     "vendor's data sheet: 8 x 400 Gb/s"},
    {"AWS p3dn.24xlarge", "V100 SXM2/SXM3 32GB", 8, Wiring::kCubeMesh, "", 12.5, "tcp", 0, 0,
     "alpa", "AWS: 100 Gb/s Ethernet"},
    {"AWS p3.2xlarge", "V100 SXM2 16GB", 1, Wiring::kHost, "", 1.25, "tcp", 0, 0, "", "AWS"},
    {"AWS p3.8xlarge", "V100 SXM2 16GB", 4, Wiring::kCubeMesh, "", 1.25, "tcp", 0, 0, "", "AWS"},
    {"AWS p4d.24xlarge", "A100 SXM 40GB", 8, Wiring::kSwitch, "", 50, "rdma", 0.9, 0, "",
     "AWS: 4 x 100 Gb/s EFA"},
    {"AWS p4de.24xlarge", "A100 SXM 80GB", 8, Wiring::kSwitch, "", 50, "rdma", 0.9, 0, "",
     "AWS: 4 x 100 Gb/s EFA"},
    {"AWS p5.48xlarge", "H100 SXM 80GB", 8, Wiring::kSwitch, "", 400, "rdma", 0.9, 0, "",
     "AWS: 32 x 100 Gb/s EFA"},
    {"AWS p5en.48xlarge", "H200 SXM 141GB", 8, Wiring::kSwitch, "", 400, "efa", 0.91, 0, "",
     "AWS: 3200 Gb/s EFA; share: 364.87 of 400 GB/s measured (nccl_collectives.csv)"},
    {"GCP a3-highgpu-8g", "H100 SXM 80GB", 8, Wiring::kSwitch, "", 100, "tcp", 0.9, 0, "",
     "GCP: 4 x 200 Gb/s GPUDirect-TCPX"},
    {"GB200 NVL72", "GB200 (per GPU)", 72, Wiring::kSwitch, "", 3600, "rdma", 0, 0, "",
     "vendor's data sheet: 72 x 400 Gb/s"},
    {"Summit", "V100 SXM2 16GB", 6, Wiring::kSwitch, "", 25, "rdma", 0, 0, "",
     "ORNL: 6 V100, 2 x 100 Gb/s EDR"},
    {"Perlmutter", "A100 SXM 40GB", 4, Wiring::kSwitch, "", 100, "rdma", 0, 0, "",
     "NERSC: 4 A100, 4 x 200 Gb/s Slingshot 11"},
    {"Frontier", "MI250X", 4, Wiring::kSwitch, "", 100, "rdma", 0, 0, "",
     "ORNL: 4 MI250X, 4 x 200 Gb/s Slingshot 11"},
    {"Cloud TPU v2", "TPU v2 (chip, 2 cores)", 4, Wiring::kTorus, "ICI (TPU v3)", 248, "ici", 0, 0,
     "gpipe", "cloud.google.com/tpu/docs: 2D torus"},
    {"Cloud TPU v3", "TPU v3 (chip, 2 cores)", 4, Wiring::kTorus, "ICI (TPU v3)", 280, "ici", 0, 0,
     "gpipe", "cloud.google.com/tpu/docs: 2D torus"},
    {"GPipe P100 node", "P100 PCIe 16GB", 8, Wiring::kHost, "PCIe 3.0 x16", 1.25, "tcp", 0, 0,
     "gpipe", "GPipe section 3: P100 without NVLink, PCIe through the host"},
    {"Ethernet CPU farm", "CPU socket (24 cores, AVX-512)", 2, Wiring::kShared, "shared memory",
     1.25, "tcp", 0, 0, "weft", "10 Gb/s Ethernet, two sockets of each node"},
};

}  // namespace

std::span<const LinkRow> link_rows() { return kLinks; }
std::span<const System> system_rows() { return kSystems; }

}  // namespace weft::plan::internal
