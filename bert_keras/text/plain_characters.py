"""Characters that tensorflow-text treats as the law does: data.

Generated: python3.11 tools/maintenance/make_plain_characters.py THIS_FILE
Base85 of zlib of 32-bit little-endian integers: where a stretch of such
characters begins, where it ends, and so on, each less the one before it.
"""

UNCASED = (
    "c-pO2%W4!+5beJGnx04I;UpSo%s3hopCL+uN*03n05_5dL4q1V#f5uanuQ=D{(y+MkbFQu*Y"
    "5oQKfn)g=Sso4&M9&%x}yOX)%SLFJ<qMG+j$TK4ipM?gw}<ILKX0oVyq5(zeeEs^&s{u_*TQ"
    "Jb{4T-63T_9p?8XW_l532cOaC)Mj})dY71S4ynk<jV&f}=4#(ex%oN`1ke@^xj%0m&&#}LXb"
    "%wA?;de;<tVFI2{$7gP=hs7w34I$QJT;d6kePt)IP$%Z?=ARhk`4cU0Csx7{*2J|aNG7G<T`"
    "|L1Uy<4Lxu8jh$EzYHQv}@m>InYxQ0eH!G4@<Dt7S>eqF)J{u84g0r%L%*hDQv1$psVl=;{A"
    "t45w{s!6h1$N!42Gd))!+nQI!$ncre;7|D}zD0Bvw*Eu1?MObN9#i{CfxVpauA?S7U&e|1g3"
    "m28axv9ZPWe`;hX0rS%;2yaKRS<6Gb0(7$_{or(Ah_`h-1l&&D5M*g>2N(_gYUe=E4zk-mc("
    "1q#g_l@Cr-xQ?o`iUsxxlzL`O+p1*|k5M+9YLGhlZ+ESnMkPpd^qqrl&%Foj)@acUYBUvxA2"
    "AzwrwE{iO|3bmN=nCeB@@Gr<gI(Im%sFVi{mqX0--A5-9s5k^u^Z*z2R_Tdv_XDqxHm)UyDr"
    "YEVd}wwe;d3iW?7T^&-=fLvpg=eDgeI*e+}yd&3{MtX=?8HG8&-fotgEqsR`!C^j&MdQBcz?"
    "-!}DDH(2E6Zi)-~RPV$(?4+Q1$}`75OAmK5V_q};mzbGTb|2ZhE~Q!SWft)6<9cKAcq^OJsH"
    ";iD@Q&)F8~!;D9#Ee@AsiI%KHd)()NxesKe1ru;~37O51qan@gG9&h0sPc>U;i=y&?1yIeOk"
    "4oj+rz=eug|Y0YmPI!A@>fj@@$&fz|I3fT>Ld=${G$$oQrRP(Rmk)N|d=OxMaCxYOX{8-KbM"
    "?Vj@sHYmH?!uD)AzwG&VB?edR~|y{BxGM={h@hB+jB+hz}Mdg>PNqBeGY=}h-(%xE)kBN9{J"
    "fU;C|VZSt~hD$;Yor?YC`T*LQ_}0Wf$rSp"
)

CASED = (
    "c-pO2J8u&~5cclgoqhKC5r>C~O(N_N^L`2QEDRDNfP^5ChyXz-5Tbz!2`VJIRFrf`G$=m+2}"
    "=F|J^T}DW_91<kI^|0iDI<3yWh<0d^<C@X{l7Q5F^qSc_h*o$*}gqO!j&r>%fmiW<+j_v>*}"
    "oBIr7du}B%;L3Us~f^jI4ifmxMjB$z1n843IS}&8nA>0h+yD?TpY9d{nC#JoII<J>GV0J<GH"
    "P&13(Ij0z-wS<je<X5B<d&J(90AwH7z4itHUq9g@mlydia$qO8`@_*2R@C$#`xYzHUnqT7Jh"
    "BP$o^xc@4$DY&e%k5xq`U(4yO4J=dUWfBTSR9Rpi3I@@pxFE$~joRZ$qelN$Vm^#ps4?!qbV"
    "4B57X55CxbTwpJyxHIG=$ICo%J@CDi6)vKjN-5qd<?#QqUsgP9$4}@x32~=+scd1l4V@0=sX"
    "9wp*-X^ERmg_t{sM5mAM986YzyXwYR?q#WTxoXRo=%6n^2tuJ>S=_VZRSd7rq0(i<C>j*9qV"
    "a`LT3fN8I?nc@_QH`#wlmkGT&US1_(ZFT_1oaYO|<!t28+>kHeoQ&#+k{Q8@n;C~iz_<!U;<"
    "PP%TrOkQhfu|L4TPJ@t_)GC$%+&n`zWw?`tX0vw8g$Rz|6SbWA(1s9_&xESK*v&kEU9^=An#"
    "ZffE%e^+aNoE53a`)eX#={1Iqah<!Bc;UsLm#`+wC%`tN$qPJ)lI&A*5Em)3y)5Z)Q)&$@X+"
    "e7&MGgnR8_J}9_%SMa|*t@=j;=kGzMC7W+tUKf7<9?tz8wUVI@Lf)^z?o+HEfSq;h`}sMMqw"
    "u?kTse&SP2i6MA7Xs0>f(!#bwkF@l{`1zM!Ei3k@FJVM=|(79$Lr1pXdJ_;?C#|HK+Q5netw"
    "EhIiX@llSaP*gJ!m>Nr2YB{S3o|L<q%J|gnFf%#Y1NmO1Z>fg%s{=3%PgrDHw=ig_l6F+|XR"
    "x16(nTD`;9eM3}?%TZn`5kKu-cI~h&I<C4`Ma$0w4(Y|PwB<#O%-sfCdc$K`gf|ofFGOEt0f"
    "oa#rQ88t2E~"
)
