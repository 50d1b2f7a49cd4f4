#include "bench/peers/command.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <string_view>

namespace weft::bench {
namespace {

class Scanner {
 public:
  explicit Scanner(const std::string& text) : text_(text) {}

  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) throw BadCommand(std::string("expected '") + wanted + "' at column " + std::to_string(at_ + 1) + " of the command");
  }
  std::string string() {
    expect('"');
    const auto end = text_.find_first_of("\"\\", at_);
    if (end == std::string::npos || text_[end] == '\\') throw BadCommand("a string in the command has no end or has an escape");
    const std::string value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }
  std::string value() {
    if (peek() == '"') return string();
    const auto end = std::min(text_.find_first_of(",} \t\r\n", at_), text_.size());
    const std::string value = text_.substr(at_, end - at_);
    at_ = end;
    return value;
  }

 private:
  const std::string& text_;
  std::size_t at_ = 0;
};

std::size_t to_number(const std::string& key, const std::string& text, std::size_t limit) {
  const bool digits =
      !text.empty() && text.size() <= 15 && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
  if (!digits || std::stoull(text) > limit)
    throw BadCommand(key + " must be a whole number up to " + std::to_string(limit) + ", got " + text);
  return std::stoull(text);
}

void check_op(const std::string& op) {
  constexpr std::array<std::string_view, 8> kOps = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                                    "reduce",     "all_to_all", "barrier",        "ping_pong"};
  if (std::find(kOps.begin(), kOps.end(), op) == kOps.end()) throw BadCommand("unknown op '" + op + "'");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

}  // namespace

std::map<std::string, std::string> parse_flat_json(const std::string& line) {
  Scanner scanner(line);
  std::map<std::string, std::string> fields;
  scanner.expect('{');
  if (scanner.take('}')) return fields;
  do {
    const std::string key = scanner.string();
    scanner.expect(':');
    fields[key] = scanner.value();
  } while (scanner.take(','));
  scanner.expect('}');
  return fields;
}

std::optional<Command> parse_command(const std::string& line) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 32;  // Element counts stay within an int.
  Command command;
  std::size_t block = 0;
  for (const auto& [key, value] : parse_flat_json(line)) {
    if (key == "quit") return std::nullopt;
    if (key == "op")
      command.op = value;
    else if (key == "bytes")
      command.bytes = to_number(key, value, kMaxBytes);
    else if (key == "iterations")
      command.iterations = static_cast<int>(to_number(key, value, 1'000'000));
    else if (key == "warmup")
      command.warmup = static_cast<int>(to_number(key, value, 1'000'000));
    else if (key == "block")
      block = to_number(key, value, 1'000'000);
    else if (key != "dtype")
      throw BadCommand("unknown key '" + key + "'");
    else if (value != "f32")
      throw BadCommand("dtype must be f32, got " + value);
  }
  check_op(command.op);
  if (command.iterations < 1) throw BadCommand("iterations must be at least 1");
  constexpr std::size_t kBlockBytes = 1 << 20;
  if (block == 0) block = std::clamp<std::size_t>(kBlockBytes / std::max<std::size_t>(command.bytes, 1), 1, 100);
  command.block = static_cast<int>(block);
  return command;
}

std::string to_json(const Command& command, const Answer& answer) {
  std::string line = "{\"impl\":\"" + answer.impl + "\",\"op\":\"" + command.op + "\",\"bytes\":" + std::to_string(command.bytes) +
                     ",\"dtype\":\"f32\",\"ranks\":" + std::to_string(answer.ranks) + ",\"block\":" + std::to_string(command.block) +
                     ",\"verified\":" + (answer.verified ? "true" : "false");
  if (answer.us.empty()) return line + ",\"error\":\"the operation left a wrong result\"}";
  line += ",\"us\":[";
  for (std::size_t i = 0; i < answer.us.size(); ++i) line += (i == 0 ? "" : ",") + number(answer.us[i]);
  return line + "],\"median_us\":" + number(median(answer.us)) + "}";
}

std::string error_to_json(const std::string& impl, const std::string& message) {
  std::string line = "{\"impl\":\"" + impl + "\",\"error\":\"";
  for (const unsigned char c : message) {
    if (c == '"' || c == '\\') line += '\\';
    line += c < 0x20 ? ' ' : static_cast<char>(c);
  }
  return line + "\"}";
}

}  // namespace weft::bench
