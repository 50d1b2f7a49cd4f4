// For tests: lists folders and damages files. Not installed.
#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace weft::checkpoint {

inline std::set<std::string> names_in(const std::string& dir) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    names.insert(entry.path().filename().string());
  return names;
}

// Flips the bits of `mask` in one byte.
inline void flip(const std::string& path, std::streamoff at, int mask = 1) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int old = file.get();
  file.seekp(at);
  file.put(static_cast<char>(old ^ mask));
}

}  // namespace weft::checkpoint
