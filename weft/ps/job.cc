#include "weft/ps/job.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "weft/base/error.h"

namespace weft::ps {
namespace {

// The number in a variable; none if it is empty or not set.
std::optional<std::uint32_t> number_of(const char* variable) {
  const char* const value = std::getenv(variable);
  const std::string_view text = value == nullptr ? "" : value;
  if (text.empty()) return std::nullopt;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  WEFT_REQUIRE(error == std::errc() && end == text.data() + text.size(),
               std::string(variable) + " is \"" + std::string(text) + "\", not a number");
  return number;
}

}  // namespace

std::uint32_t servers_of_job() { return number_of("WEFT_PS_SERVERS").value_or(0); }

ClientOptions job_client() {
  ClientOptions options;
  options.servers = servers_of_job();
  WEFT_REQUIRE(options.servers > 0,
               "this job has no parameter servers; start it with weft run --servers N, or give "
               "ClientOptions::directory");
  options.worker = number_of("RANK");
  options.secret = job_secret();
  return options;
}

std::optional<std::array<std::byte, 32>> job_secret() {
  const auto file = number_of("WEFT_SECRET_FD");
  if (!file) return std::nullopt;
  std::array<std::byte, 32> secret;
  WEFT_REQUIRE(::pread(static_cast<int>(*file), secret.data(), secret.size(), 0) ==
                   static_cast<ssize_t>(secret.size()),
               "WEFT_SECRET_FD is not an open file of 32 bytes");
  return secret;
}

}  // namespace weft::ps
