#include "weft/plan/model/software.h"

#include <algorithm>
#include <cctype>

#include "weft/base/config.h"
#include "weft/base/error.h"

namespace weft::plan {
namespace {

// Properties of each framework's code in the years of the published measurements:
//   megatron            Megatron-LM 2020 to 2022 (Shoeybi et al. 2019, Narayanan et al. 2021): its
//                       own fused kernels, gradients reduced after the last backward.
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
std::vector<Software> table() {
  const Software fused = {.fused_elementwise = true,
                          .fused_softmax = true,
                          .loss_bytes = 52,
                          .overlaps_gradients = false,
                          .splits_messages = true};
  std::vector<Software> all;
  const auto add = [&](const char* name, Software software) {
    software.name = name;
    all.push_back(software);
  };
  add("megatron", fused);
  Software blocking = fused;
  blocking.cuts_by_cost = false;
  add("megatron_deepspeed", blocking);
  add("deepspeed", {.fused_elementwise = true, .fused_softmax = true});
  add("alpa", {.fused_elementwise = true,
               .fused_softmax = true,
               .compiled = true,
               .channels_last = true,
               .overlaps_gradients = false});
  add("torchtitan", {.flash = true,
                     .loss_bytes = 32,
                     .gradient_bytes = 4,
                     .master_weights = false,
                     .bucket_bytes = 0,
                     .selective = SelectiveKind::kHalfOfMatmuls});
  add("nanotron", {.fused_elementwise = true,
                   .flash = true,
                   .loss_bytes = 52,
                   .gradient_bytes = 4,
                   .sums_in_float = true,
                   .cuts_by_cost = true});
  add("torch_ddp", {.loss_bytes = 40});
  add("oneflow", {.fused_elementwise = true, .fused_softmax = true, .channels_last = true});
  add("tensorflow", {.fused_elementwise = true, .channels_last = true});
  add("mxnet", {.channels_last = true});
  add("paddle", {.channels_last = true});
  add("gpipe", {.compiled = true, .channels_last = true, .cuts_by_cost = true});
  add("torchgpipe", {.overlaps_messages = true, .cuts_by_cost = true});
  add("weft", {.flash = true,
               .gradient_bytes = 4,
               .master_weights = false,
               .context_bytes = 0.3e9,
               .cuts_by_cost = true,
               .shards_over_context = false});
  return all;
}

std::string simple(std::string_view name) {
  std::string key;
  for (const char c : name) {
    key += c == '-' || c == ' ' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return key;
}

}  // namespace

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
  std::string all;
  for (const std::string& one : known_software()) all += (all.empty() ? "" : ", ") + one;
  throw Error(Errc::kInvalidArgument,
              "software \"" + std::string(name.substr(0, 40)) + "\" is not known; " +
                  (near ? "did you mean " + *near + "?" : "use one of " + all));
}

}  // namespace weft::plan
