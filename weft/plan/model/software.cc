#include "weft/plan/model/software.h"

#include <algorithm>
#include <cctype>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/text/words.h"

namespace weft::plan {
namespace {

// Properties of each framework's code in the years of the published measurements:
//   megatron_2020       Megatron-LM of 2020, with PyTorch's DistributedDataParallel.
//   megatron            Megatron-LM 2021 and 2022 (Shoeybi et al. 2019, Narayanan et al. 2021): its
//                       own fused kernels, gradients reduced after the last backward.
//   megatron_core       Megatron-Core since 2023. "megatron" stands for it on Hopper and later.
//   megatron_deepspeed  BLOOM's Megatron-DeepSpeed (2022): DeepSpeed's 1F1B with ZeRO-1.
//   deepspeed           DeepSpeed with a PyTorch model: ZeRO, overlapped reduction.
//   alpa                JAX and XLA (Zheng et al. 2022): fused elementwise chains, no fused
//                       attention.
//   torchtitan          PyTorch FSDP2, flash attention, selective recomputation of every second
//                       matrix product; compiled where a scenario says so.
//   nanotron            PyTorch with flash attention and Triton norms, gradients summed in float32.
//   torch_ddp           PyTorch with DistributedDataParallel.
//   oneflow, tensorflow, mxnet, paddle    as DLPerf ran them (2020).
//   gpipe, torchgpipe   GPipe on TPU and in PyTorch, full recomputation of each stage.
//   weft                this library on CPUs (docs/architecture.md).
void fuse_softmax(Software& s) {
  s.softmax_forward = 2;
  s.softmax_backward = 3;
}

// Megatron-LM's kernels.
Software fused_kernels() {
  Software s;
  s.fused_elementwise = true;
  fuse_softmax(s);
  s.loss_bytes = 52;
  s.overlap = 0;
  s.splits_messages = true;
  return s;
}

// Megatron-Core since 2023 with Transformer Engine: flash attention, the distributed optimizer with
// overlapped reductions and gathers, tensor parallelism whose collectives overlap with products
// (--tp-comm-overlap), interleaved pipelines whose messages overlap. Products add weight gradients
// to float32 sums themselves.
Software megatron_core() {
  Software s = fused_kernels();
  s.flash = s.new_attention = s.fused_rotary = s.joins_gate = true;
  s.cuts = CutRule::kEnds;
  s.overlap = s.overlaps_gather = 1;
  s.overlaps_messages = s.hides_tensor = s.interleaves = true;
  s.splits_messages = false;
  s.gradient_bytes = 4;
  // A pass that finds the largest value, and one that writes the array and its transpose.
  s.cast_bytes = 2 + 2 + 1 + 1;
  s.caches_weights = true;
  s.experts_over_tensor = s.waits_for_counts = s.sends_tokens_once = true;
  s.bucket_bytes = 160e6;  // 40 million elements
  s.loss_bytes = 32;
  return s;
}

// Before the fused softmax and the split of messages over tensor ranks: the mask is a kernel of its
// own, which reads the scores and a mask of one byte and writes the scores where they change.
Software megatron_2020() {
  Software s = fused_kernels();
  s.softmax_forward = 3.5;
  s.softmax_backward = 4.5;
  s.splits_messages = false;
  return s;
}

// DeepSpeed's example of Megatron-LM v1: separate kernels for bias, dropout and residual, scale,
// mask and a softmax in float32.
Software megatron_2019() {
  Software s = fused_kernels();
  s.fused_elementwise = false;
  s.kernel_share = 0.8;
  s.softmax_forward = 9;
  s.softmax_backward = 9;
  s.splits_messages = false;
  s.bucket_bytes = 1e9;
  s.context_bytes = 2.5e9;
  s.reports_context = true;
  s.loss_bytes = 70;
  return s;
}

Software megatron_deepspeed() {
  Software s = fused_kernels();
  s.bucket_bytes = 1e9;  // 5e8 elements, the default of reduce and all-gather buckets
  s.partition_bytes = 4;
  s.context_bytes = 2.5e9;
  s.reports_context = true;
  s.fragmentation = 0.2;
  s.tensor_wait = 1.2e-3;
  // DeepSpeed's BF16_Optimizer (update_hp_grads) copies each gradient to float32 and adds the copy:
  // 2 + 4 and 4 + 4 + 4 bytes.
  s.sum_bytes = 18;
  return s;
}

Software deepspeed() {
  Software s;
  s.dispatch = Dispatch::kMask;
  s.fused_elementwise = true;
  fuse_softmax(s);
  return s;
}

Software alpa() {
  Software s;
  s.loss_kept = 5;
  s.fragmentation = 0;
  s.convolution_share = 0.62;  // rows of W-ResNet on one device in alpa_2021_v100_32gb
  s.dispatch = Dispatch::kMaskFloat;
  s.fused_elementwise = s.compiled = s.channels_last = true;
  fuse_softmax(s);
  s.overlap = 0;
  return s;
}

Software torchtitan() {
  Software s;
  s.flash = true;
  s.loss_bytes = 32;
  s.loss_kept = 16;
  s.gradient_bytes = 4;
  s.master_weights = false;
  s.keeps_gathered = true;
  s.gathers_once_in_pipeline = true;
  s.bucket_bytes = 0;
  s.selective = SelectiveKind::kHalfOfMatmuls;
  s.fragmentation = 0.1;
  return s;
}

// Its sharded loss keeps the logits and their softmax in float32. Queries, keys and values are
// packed copies. A gradient is added to its float32 sum by one kernel (2 + 4 + 4 bytes).
Software nanotron() {
  Software s;
  s.fused_elementwise = s.flash = true;
  s.loss_bytes = 52;
  s.loss_kept = 8;
  s.gradient_bytes = 4;
  s.sum_bytes = 10;
  s.keeps_gathered = true;
  s.more_kept = 3;
  s.cuts = CutRule::kParameters;
  s.message_rate = 0.7e9;
  s.receives_block = true;
  return s;
}

// Convolutions and the overlap of all frameworks of DLPerf are alike: one value for each explains
// their rows as well as one for each framework (dlperf_data_parallel_v100: 7.9 and 7.7 %).
constexpr double kConvolutionsOf2020 = 1.15, kOverlapOf2020 = 0.5;

// `half` and `single`: rates of products in 16 and 32 bits, from DLPerf's rows on one device.
Software in_2020(bool fused, bool channels_last, double half, double single = 1) {
  Software s;
  s.kernel_share = half;
  s.float_share = single;
  s.convolution_share = kConvolutionsOf2020;
  s.overlap = kOverlapOf2020;
  s.step_overhead = 8e-3;
  // Mixed precision keeps float32 copies around norms, activations and softmax.
  s.more_kept = fused ? 0 : 26;
  s.scores_kept = fused ? 0 : 10;
  if (fused) fuse_softmax(s);
  s.fused_elementwise = fused;
  s.channels_last = channels_last;
  return s;
}

Software gpipe() {
  Software s;
  s.compiled = s.channels_last = true;
  s.cuts = CutRule::kTime;
  return s;
}

Software torchgpipe() {
  Software s;
  s.overlaps_messages = true;
  s.cuts = CutRule::kTime;
  return s;
}

Software weft_on_cpu() {
  Software s;
  s.flash = true;
  s.gradient_bytes = 4;
  s.master_weights = false;
  s.frees_gradients = true;
  s.context_bytes = 0.15e9;  // loaded, libtorch and weft take 0.12e9; the rest is an allowance
  s.reports_context = true;
  s.cuts = CutRule::kTime;
  s.shards_over_context = false;
  s.sends_seen_keys = true;
  return s;
}

std::vector<Software> table() {
  std::vector<Software> all;
  const auto add = [&](const char* name, Software software) {
    software.name = name;
    all.push_back(std::move(software));
  };
  add("megatron", fused_kernels());
  add("megatron_core", megatron_core());
  add("megatron_2020", megatron_2020());
  add("megatron_2019", megatron_2019());
  add("megatron_deepspeed", megatron_deepspeed());
  add("deepspeed", deepspeed());
  add("alpa", alpa());
  add("torchtitan", torchtitan());
  add("nanotron", nanotron());
  add("torch_ddp", in_2020(false, false, 0.75, 0.83));
  add("oneflow", in_2020(true, true, 0.78));
  add("tensorflow", in_2020(true, true, 0.62));
  add("mxnet", in_2020(false, true, 0.77));
  add("paddle", in_2020(false, true, 0.43));
  add("gpipe", gpipe());
  add("torchgpipe", torchgpipe());
  add("weft", weft_on_cpu());
  return all;
}

std::string simple(std::string_view name) {
  std::string key;
  for (const char c : name) {
    key +=
        c == '-' || c == ' ' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return key;
}

}  // namespace

SelectiveKind parse_selective(std::string_view name) {
  if (name == "attention") return SelectiveKind::kAttention;
  if (name == "matmuls") return SelectiveKind::kHalfOfMatmuls;
  if (name == "layers") return SelectiveKind::kEverySecondLayer;
  if (name == "experts") return SelectiveKind::kExperts;
  throw Error(Errc::kInvalidArgument,
              "selective recomputation \"" + std::string(name.substr(0, 40)) +
                  "\" is not known; use attention, matmuls, layers or experts");
}

Graphs parse_graphs(std::string_view name) {
  if (name == "none") return Graphs::kNone;
  if (name == "partial") return Graphs::kPartial;
  if (name == "full") return Graphs::kFull;
  throw Error(Errc::kInvalidArgument, "cuda_graphs \"" + std::string(name.substr(0, 40)) +
                                          "\" is not known; use none, partial or full");
}

std::vector<std::string> known_software() {
  std::vector<std::string> names;
  for (const Software& one : table()) names.push_back(one.name);
  return names;
}

Software software(std::string_view name) {
  const std::string key = simple(name);
  for (const Software& one : table()) {
    if (one.name == key) return one;
  }
  const auto near = nearest(key, known_software());
  throw Error(
      Errc::kInvalidArgument,
      "software \"" + std::string(name.substr(0, 40)) + "\" is not known; " +
          (near ? "did you mean " + *near + "?" : "use one of " + joined(known_software())));
}

}  // namespace weft::plan
