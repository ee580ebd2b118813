# cmake -DFILE=page.html -DHEADER=folder/page.h -DNAME=ns::kPage -DOUT=page.cc -P embed.cmake: writes the file as the
# constant `const char ns::kPage[]` that the header declares.
file(READ ${FILE} text)
if(text MATCHES "\\)rr\"")
  message(FATAL_ERROR "${FILE} must not contain )rr\", which ends the string literal")
endif()
file(WRITE ${OUT} "#include \"${HEADER}\"\n\nconst char ${NAME}[] = R\"rr(${text})rr\";\n")
