#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <torch/version.h>

#include "weft/base/log.h"
#include "weft/cli/internal/checks.h"
#include "weft/comm/allocator.h"
#include "weft/net/memory/heap.h"

namespace weft::cli {
namespace {

using Grade = Finding::Grade;

Finding version() {
  return {"torch", Grade::kOk,
          std::string(TORCH_VERSION) + ", " + std::to_string(at::get_num_threads()) + " threads, " +
              (at::hasMKL() ? "MKL" : "no MKL") + ", " + (at::hasMKLDNN() ? "oneDNN" : "no oneDNN"),
          at::hasMKLDNN() ? "" : "convolutions are slow without oneDNN; take a wheel that has it"};
}

// The file that defines a symbol of this process; empty if no file does.
std::string owner_of(const char* symbol) {
  void* const address = ::dlsym(RTLD_DEFAULT, symbol);
  Dl_info info{};
  if (address == nullptr || ::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  return info.dli_fname;
}

std::string folder_of(const std::string& file) { return file.substr(0, file.rfind('/')); }

// Finds a library whose symbols displace libtorch's own. Calls to libtorch's BLAS, libuv or OpenMP
// would then reach another build of that library.
Finding foreign(const char* what, const char* symbol) {
  const std::string owner = owner_of(symbol);
  const auto torch_symbol =
      reinterpret_cast<void*>(static_cast<void (*)(int)>(&at::set_num_threads));
  Dl_info info{};
  ::dladdr(torch_symbol, &info);
  const std::string torch_folder = info.dli_fname != nullptr ? folder_of(info.dli_fname) : "";
  if (owner.empty())
    return {what, Grade::kOk, std::string("no ") + symbol + " outside libtorch", ""};
  const bool own =
      folder_of(owner) == torch_folder || owner.find("/torch.libs/") != std::string::npos;
  if (own) return {what, Grade::kOk, std::string(symbol) + " is torch's own", ""};
  return {what, Grade::kWarn, std::string(symbol) + " comes from " + owner + ", not from torch",
          "do not link or preload that library into a process with libtorch"};
}

// Runs a few steps of a small model, so that the heap holds tensors to report on. It uses no
// torch::nn, whose headers would cost more than all of the folder.
Finding heap() {
  if (!comm::install_allocator()) {
    const char* reason = net::process_heap_error();
    return {"heap", Grade::kWarn,
            std::string("tensors are not in shared memory: ") +
                (reason != nullptr ? reason : "WEFT_HEAP_MB=0"),
            "gradients are copied instead, which costs some speed"};
  }
  at::Tensor weight = at::rand({256, 256}).requires_grad_(),
             bias = at::rand({256}).requires_grad_();
  for (int i = 0; i < 3; ++i) {
    for (at::Tensor* parameter : {&weight, &bias}) parameter->mutable_grad().reset();
    at::linear(at::ones({32, 256}), weight, bias).square().mean().backward();
    const c10::NoGradGuard update;
    for (at::Tensor* parameter : {&weight, &bias}) parameter->sub_(parameter->grad(), 0.1);
  }
  const auto stats = net::process_heap()->stats();
  const std::string found =
      "limit " + format_bytes(stats.limit_bytes) + ", after a small step live " +
      format_bytes(stats.live_bytes) + ", peak " + format_bytes(stats.peak_bytes) + ", " +
      std::to_string(stats.reused) + " of " + std::to_string(stats.allocations) +
      " blocks reused, 1,000,000 B take " + std::to_string(net::Heap::rounded(1'000'000)) +
      ", on huge pages " + format_bytes(stats.huge_bytes);
  const bool refused = stats.refused > 0;
  return {"heap", refused ? Grade::kWarn : Grade::kOk, found,
          refused ? "raise WEFT_HEAP_MB: some tensors did not fit" : ""};
}

}  // namespace

std::vector<Finding> torch_findings() {
  return {version(), foreign("BLAS", "cblas_sgemm"), foreign("libuv", "uv_run"),
          foreign("OpenMP", "GOMP_parallel"), heap()};
}

}  // namespace weft::cli
