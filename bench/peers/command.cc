#include "bench/peers/command.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

namespace weft::bench {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::size_t to_number(const std::string& key, const json& value, std::size_t limit) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > limit) {
    throw BadCommand(key + " must be a whole number up to " + std::to_string(limit) + ", got " +
                     value.dump());
  }
  return value.get<std::size_t>();
}

void check_op(const std::string& op) {
  constexpr std::array<std::string_view, 8> kOps = {"all_reduce", "all_gather", "reduce_scatter",
                                                    "broadcast",  "reduce",     "all_to_all",
                                                    "barrier",    "ping_pong"};
  if (std::find(kOps.begin(), kOps.end(), op) == kOps.end())
    throw BadCommand("unknown op '" + op + "'");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Rounds to three digits after the point.
double rounded(double value) { return std::round(value * 1000) / 1000; }

std::string one_line(const ordered_json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::optional<Command> parse_command(const std::string& line) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 32;  // Element counts stay within an int.
  Command command;
  std::size_t block = 0;
  const json fields = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!fields.is_object()) throw BadCommand("the command is not a JSON object");
  for (const auto& [key, value] : fields.items()) {
    if (key == "quit") return std::nullopt;
    if (key == "op")
      command.op = value.is_string() ? value.get<std::string>() : value.dump();
    else if (key == "bytes")
      command.bytes = to_number(key, value, kMaxBytes);
    else if (key == "iterations")
      command.iterations = static_cast<int>(to_number(key, value, 1'000'000));
    else if (key == "warmup")
      command.warmup = static_cast<int>(to_number(key, value, 1'000'000));
    else if (key == "block")
      block = to_number(key, value, 1'000'000);
    else if (key == "rewrite")
      command.rewrite = to_number(key, value, 1) == 1;
    else if (key != "dtype")
      throw BadCommand("unknown key '" + key + "'");
    else if (value != "f32")
      throw BadCommand("dtype must be f32, got " + value.dump());
  }
  check_op(command.op);
  if (command.iterations < 1) throw BadCommand("iterations must be at least 1");
  constexpr std::size_t kBlockBytes = 1 << 20;
  if (block == 0)
    block = std::clamp<std::size_t>(kBlockBytes / std::max<std::size_t>(command.bytes, 1), 1, 100);
  command.block = static_cast<int>(block);
  return command;
}

std::string to_json(const Command& command, const Answer& answer) {
  ordered_json line = {{"impl", answer.impl},        {"op", command.op},
                       {"bytes", command.bytes},     {"dtype", "f32"},
                       {"ranks", answer.ranks},      {"block", command.block},
                       {"verified", answer.verified}};
  if (answer.us.empty()) {
    line["error"] = "the operation left a wrong result";
    return one_line(line);
  }
  line["us"] = json::array();
  for (const double us : answer.us) line["us"].push_back(rounded(us));
  line["median_us"] = rounded(median(answer.us));
  return one_line(line);
}

std::string error_to_json(const std::string& impl, const std::string& message) {
  return one_line({{"impl", impl}, {"error", message}});
}

}  // namespace weft::bench
