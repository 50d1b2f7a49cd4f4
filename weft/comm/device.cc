// DeviceSpec and device_of() of init.h.
#include <ATen/Context.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"
#include "weft/comm/environment.h"
#include "weft/comm/init.h"
#include "weft/comm/internal/local_rank.h"

namespace weft::comm {
namespace {

constexpr const char* kPrefix = "cuda:";

std::atomic<int> known_local_rank{-1};  // -1: init() has not been called

std::optional<int> number_in(const std::string& name) {
  if (name.rfind(kPrefix, 0) != 0) return std::nullopt;
  return parse_count(name.substr(std::string_view(kPrefix).size()));
}

c10::Device cuda(int number) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(number)};
}

std::string have(int devices) {
  return devices == 0 ? "there is none (or weft was built without CUDA)"
                      : "the host has " + counted(devices, "CUDA device");
}

}  // namespace

DeviceSpec::DeviceSpec(const std::string& name) : number_(number_in(name)) {
  if (name == "cpu") return;
  kind_ = name == "auto" ? Kind::kAuto : Kind::kCuda;
  if (name == "auto" || name == "cuda" || number_) return;
  throw Error(Errc::kBadConfig, "unknown device '" + name + "'; use cpu, cuda, cuda:0 or auto");
}

std::string DeviceSpec::text() const {
  if (number_) return kPrefix + std::to_string(*number_);
  return kind_ == Kind::kCpu ? "cpu" : kind_ == Kind::kAuto ? "auto" : "cuda";
}

c10::Device device_of(const DeviceSpec& spec, int local_rank, int devices) {
  using Kind = DeviceSpec::Kind;
  const int number = spec.number_.value_or(local_rank);
  if (spec.is_cpu() || (spec.kind_ == Kind::kAuto && number >= devices))
    return c10::DeviceType::CPU;
  if (number >= devices) {
    // Without any, the line is the same on all ranks.
    const std::string needed =
        devices == 0 ? "a CUDA device" : "CUDA device " + std::to_string(number);
    throw Error(Errc::kBadConfig, "device \"" + spec.text() + "\" needs " + needed +
                                      " on this host, but " + have(devices) +
                                      "; use auto or cpu, or start fewer ranks");
  }
  return cuda(number);
}

c10::Device device_of(const DeviceSpec& spec) {
  if (spec.is_cpu()) return c10::DeviceType::CPU;
  return device_of(spec, internal::local_rank(),
                   at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0);
}

int internal::local_rank() {
  const int known = known_local_rank.load();
  return known >= 0 ? known : discover(Environment::process()).local_rank;
}

void internal::set_local_rank(int local_rank) noexcept { known_local_rank = local_rank; }

}  // namespace weft::comm
